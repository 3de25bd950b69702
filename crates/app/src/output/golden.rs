//! Texts that tests compare with files. `LARIAT_GOLDEN=write cargo test -p app` writes them anew; `git diff` shows what changed.

use std::fs;
use std::path::PathBuf;

#[track_caller]
pub(crate) fn check(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("{name}.txt"));
    if std::env::var_os("LARIAT_GOLDEN").is_some_and(|value| value == "write") {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder for the file");
        fs::write(&path, text).expect("the file can be written");
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "tests/golden/{name}.txt differs; if that is meant, write it anew with LARIAT_GOLDEN=write\n\
         --- expected\n{expected}--- now\n{text}"
    );
}
