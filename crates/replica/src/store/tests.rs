mod crashes;
mod rebuilds;
mod rows;
mod threads;

/// So many cases unless `PROPTEST_CASES` asks for more: long runs are for machines that have time.
fn cases(default: u32) -> proptest::test_runner::Config {
    let wanted = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|text| text.parse().ok());
    proptest::test_runner::Config::with_cases(wanted.unwrap_or(default))
}
