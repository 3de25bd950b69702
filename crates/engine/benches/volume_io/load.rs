//! The load, made by fio, and its figures: always two targets in turn, one beside the other, because a shared machine is not the
//! same from one minute to the next. Medians of `LARIAT_BENCH_ROUNDS` (3) runs of `LARIAT_BENCH_SECONDS` (1) each.

use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

struct Case {
    title: &'static str,
    /// fio's `rw`, block size and depth.
    load: [&'static str; 3],
    /// Whether MiB/s is the figure.
    in_mib: bool,
}

const fn case(title: &'static str, load: [&'static str; 3], in_mib: bool) -> Case {
    Case {
        title,
        load,
        in_mib,
    }
}

#[rustfmt::skip]
const CASES: [Case; 8] = [
    case("read d1", ["--rw=randread", "--bs=4k", "--iodepth=1"], false),
    case("read d32", ["--rw=randread", "--bs=4k", "--iodepth=32"], false),
    case("write d1", ["--rw=randwrite", "--bs=4k", "--iodepth=1"], false),
    case("write d32", ["--rw=randwrite", "--bs=4k", "--iodepth=32"], false),
    case("seq read 128k", ["--rw=read", "--bs=128k", "--iodepth=16"], true),
    case("seq write 128k", ["--rw=write", "--bs=128k", "--iodepth=16"], true),
    case("seq read 1m", ["--rw=read", "--bs=1m", "--iodepth=8"], true),
    case("seq write 1m", ["--rw=write", "--bs=1m", "--iodepth=8"], true),
];

/// What one run of fio gave.
struct Run {
    per_second: f64,
    p50_us: f64,
}

/// What fio reads and writes.
#[derive(Clone)]
pub struct Target {
    options: Vec<String>,
}

impl Target {
    pub fn nbd(endpoint: &str) -> Self {
        Self {
            options: vec!["--ioengine=nbd".into(), format!("--uri={endpoint}")],
        }
    }

    pub fn device(path: &str) -> Self {
        let plain = ["--ioengine=io_uring", "--direct=1"].map(String::from);
        let file = format!("--filename={path}");
        Self {
            options: plain.into_iter().chain([file]).collect(),
        }
    }

    /// Every block is there before anything is measured.
    pub fn fill(&self) -> Result<()> {
        self.fio(&["--rw=write", "--bs=1m", "--iodepth=8"], None)?;
        Ok(())
    }

    pub fn fio(&self, load: &[&str], seconds: Option<&str>) -> Result<serde_json::Value> {
        // What was written before would be on its way to the disk meanwhile.
        rustix::fs::sync();
        let mut process = Command::new("fio");
        process
            .args(["--name=bench", "--output-format=json", "--size=512m"])
            .arg("--randrepeat=0")
            .args(&self.options)
            .args(load);
        if let Some(seconds) = seconds {
            process.args(["--time_based", "--ramp_time=300ms"]);
            process.arg(format!("--runtime={seconds}"));
        }
        let output = process.output().context("fio cannot be run; install fio")?;
        ensure!(
            output.status.success(),
            "fio {load:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8_lossy(&output.stdout);
        let start = text.find('{').context("fio gives JSON")?;
        Ok(serde_json::from_str(&text[start..])?)
    }

    fn run(&self, case: &Case, seconds: &str) -> Result<Run> {
        let json = self.fio(&case.load, Some(seconds))?;
        let is_read = case.load[0].contains("read");
        let side = &json["jobs"][0][if is_read { "read" } else { "write" }];
        let per_second = if case.in_mib {
            side["bw_bytes"].as_f64().unwrap_or(0.0) / f64::from(1 << 20)
        } else {
            side["iops"].as_f64().unwrap_or(0.0)
        };
        let p50_ns = side["clat_ns"]["percentile"]["50.000000"].as_f64();
        Ok(Run {
            per_second,
            p50_us: p50_ns.unwrap_or(0.0) / 1e3,
        })
    }

    /// The median of a flush behind each single write.
    fn fsync_us(&self, seconds: &str) -> Result<f64> {
        let each = ["--rw=randwrite", "--bs=4k", "--iodepth=1", "--fsync=1"];
        let json = self.fio(&each, Some(seconds))?;
        let p50_ns = json["jobs"][0]["sync"]["lat_ns"]["percentile"]["50.000000"].as_f64();
        Ok(p50_ns.unwrap_or(0.0) / 1e3)
    }
}

fn setting(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.into())
}

fn seconds() -> String {
    setting("LARIAT_BENCH_SECONDS", "1")
}

fn rounds() -> Result<usize> {
    let rounds = setting("LARIAT_BENCH_ROUNDS", "3").parse()?;
    ensure!(rounds > 0, "LARIAT_BENCH_ROUNDS is 0");
    Ok(rounds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One row of the table.
pub struct Row {
    name: String,
    figures: Vec<Figure>,
}

struct Figure {
    per_second: f64,
    p50_us: f64,
    beside_per_second: f64,
    ratio: f64,
}

/// Measures a target and another one beside it, in turn.
pub fn measure(name: &str, target: &Target, beside: &Target) -> Result<Row> {
    let (seconds, rounds) = (seconds(), rounds()?);
    let mut figures = Vec::new();
    for case in &CASES {
        let mut runs = Vec::new();
        for _ in 0..rounds {
            runs.push((beside.run(case, &seconds)?, target.run(case, &seconds)?));
        }
        let of = |pick: fn(&Run, &Run) -> f64| {
            let values = runs.iter().map(|(beside, target)| pick(beside, target));
            median(values.collect())
        };
        figures.push(Figure {
            per_second: of(|_, target| target.per_second),
            p50_us: of(|_, target| target.p50_us),
            beside_per_second: of(|beside, _| beside.per_second),
            ratio: of(|beside, target| target.per_second / beside.per_second),
        });
    }
    Ok(Row {
        name: name.to_owned(),
        figures,
    })
}

/// What a flush takes, and how often that of the other target goes into it.
pub struct Fsync {
    took_us: f64,
    beside_us: f64,
    ratio: f64,
}

pub fn measure_fsync(target: &Target, beside: &Target) -> Result<Fsync> {
    let (seconds, rounds) = (seconds(), rounds()?);
    let mut runs = Vec::new();
    for _ in 0..rounds {
        runs.push((beside.fsync_us(&seconds)?, target.fsync_us(&seconds)?));
    }
    Ok(Fsync {
        took_us: median(runs.iter().map(|run| run.1).collect()),
        beside_us: median(runs.iter().map(|run| run.0).collect()),
        ratio: median(runs.iter().map(|run| run.1 / run.0).collect()),
    })
}

impl fmt::Display for Fsync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "p50 {:.0} µs, {:.1} times that of the raw file ({:.0} µs)",
            self.took_us, self.ratio, self.beside_us
        )
    }
}

pub fn print_table(beside: &str, rows: &[Row]) {
    println!("\n| what | {} |", CASES.map(|case| case.title).join(" | "));
    println!("| --- |{}", " --- |".repeat(CASES.len()));
    for row in rows {
        let shown = row.figures.iter().zip(&CASES);
        let cells = |cell: fn(&Figure, &Case) -> String| {
            let cells: Vec<String> = shown.clone().map(|(f, case)| cell(f, case)).collect();
            cells.join(" | ")
        };
        let floor = cells(|figure, case| amount(figure.beside_per_second, case));
        let own = cells(|figure, case| {
            let amount = amount(figure.per_second, case);
            let latency = if case.in_mib {
                String::new()
            } else {
                format!(" ({:.0} µs)", figure.p50_us)
            };
            format!("{amount}{latency} **{:.2}**", figure.ratio)
        });
        println!("| {beside}, beside the next | {floor} |");
        println!("| {} | {own} |", row.name);
    }
    println!("In brackets the median latency, in bold the ratio to {beside} measured in turn.");
}

fn amount(per_second: f64, case: &Case) -> String {
    if case.in_mib {
        format!("{per_second:.0} MiB/s")
    } else {
        format!("{:.1}k/s", per_second / 1000.0)
    }
}

/// 4 KiB there and a few bytes back, one at a time.
pub fn loopback_us() -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let echo = std::thread::spawn(move || {
        let mut buffer = [0u8; 4096];
        while server.read_exact(&mut buffer).is_ok() && server.write_all(&buffer[..16]).is_ok() {}
    });
    const ROUNDS: u32 = 20_000;
    let mut answer = [0u8; 16];
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        client.write_all(&[7; 4096])?;
        client.read_exact(&mut answer)?;
    }
    let elapsed = begun.elapsed();
    drop(client);
    echo.join().expect("the echo does not panic");
    Ok(elapsed.as_secs_f64() * 1e6 / f64::from(ROUNDS))
}
