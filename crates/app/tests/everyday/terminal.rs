//! Commands that stay: a watch, and `top` in a pseudo-terminal.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use crate::shell::Shell;
use crate::support::{PATIENCE, eventually};
use crate::world::World;

/// A command that goes on, and the lines that it prints.
struct Watch {
    child: Child,
    lines: mpsc::Receiver<String>,
    reading: std::thread::JoinHandle<()>,
}

impl Watch {
    fn start(shell: &Shell, line: &str) -> Self {
        let mut child = shell
            .command(line)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a watch");
        let (line, lines) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let reading = std::thread::spawn(move || {
            out.lines()
                .map_while(Result::ok)
                .for_each(|text| drop(line.send(text)));
        });
        Self {
            child,
            lines,
            reading,
        }
    }

    fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line")
    }

    /// Waits for a line that begins with these words.
    fn until(&self, words: &[&str]) {
        let begins = |line: &String| {
            line.split_whitespace()
                .take(words.len())
                .eq(words.iter().copied())
        };
        while !begins(&self.next()) {}
    }

    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it can be ended");
        self.child.wait().expect("it ends");
        self.reading.join().expect("all lines");
    }
}

pub fn a_watch_tells_what_changes(_: &World, shell: &Shell) {
    let volumes = Watch::start(shell, "volume list --watch -o name");
    shell
        .ask("volume create seen --size 64Mi --replicas 1")
        .ends_with(0);
    assert_eq!(volumes.next(), "volume/seen");
    volumes.end();
    shell.ask("volume delete seen --yes").ends_with(0);

    let settings = Watch::start(shell, "setting list --watch");
    for value in ["3", "2", "3"] {
        let line = format!("setting set default-replica-count {value}");
        shell.ask(&line).ends_with(0);
        settings.until(&["default-replica-count", value]);
    }
    settings.end();
}

/// A terminal with somebody in front of it.
struct Screen {
    keyboard: File,
    terminal: OwnedFd,
    seen: mpsc::Receiver<Vec<u8>>,
    text: String,
    child: Child,
}

impl Screen {
    fn start(shell: &Shell, line: &str) -> Self {
        Self::start_with(shell.command(line), 100)
    }

    fn start_with(mut command: Command, columns: u16) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&keyboard).expect("a terminal of our own");
        unlockpt(&keyboard).expect("a terminal that can be opened");
        let name = ptsname(&keyboard, Vec::new()).expect("its name");
        let name = name.to_str().expect("a path");
        let terminal = File::options()
            .read(true)
            .write(true)
            .open(name)
            .expect(name);
        let size = Winsize {
            ws_row: 30,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).expect("a size");
        let side = || Stdio::from(terminal.try_clone().expect("the terminal"));
        let child = command
            .stdin(side())
            .stdout(side())
            .stderr(side())
            .env("TERM", "xterm")
            .spawn()
            .expect("lariat in a terminal");
        let keyboard = File::from(keyboard);
        let mut eyes = keyboard.try_clone().expect("the other side");
        let (show, seen) = mpsc::channel();
        // Ends when the last user of the terminal is gone.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = eyes.read(&mut bytes) {
                if count == 0 || show.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            keyboard,
            terminal: terminal.into(),
            seen,
            text: String::new(),
            child,
        }
    }

    fn until(&mut self, part: &str) {
        eventually(&format!("{part:?} on the screen"), || {
            self.look();
            self.text.contains(part)
        });
    }

    fn look(&mut self) {
        while let Ok(bytes) = self.seen.try_recv() {
            self.text += &String::from_utf8_lossy(&bytes);
        }
    }

    /// Until what was drawn last has all of these and none of those.
    fn until_drawn(&mut self, parts: &[&str], without: &[&str]) {
        eventually(
            &format!("{parts:?} without {without:?} on the screen"),
            || {
                self.look();
                let (_, last) = self.text.rsplit_once(HOME).unwrap_or_default();
                parts.iter().all(|part| last.contains(part))
                    && !without.iter().any(|part| last.contains(part))
            },
        );
    }

    fn press(&mut self, key: u8) {
        self.keyboard.write_all(&[key]).expect("a key");
    }
}

pub fn tables_fit_and_colours_can_be_had_or_not(_: &World, shell: &Shell) {
    let shown = |line: &str, columns: u16, plain: bool| {
        let mut command = shell.command(line);
        if plain {
            command.env("NO_COLOR", "1");
        }
        let mut screen = Screen::start_with(command, columns);
        screen.until("node-3");
        screen.child.wait().expect("it ends");
        screen.until("\n");
        screen.text
    };
    assert!(shown("node list", 100, false).contains("\x1b[32mReady\x1b[0m"));
    let narrow = shown("disk list -o wide", 60, true);
    assert!(!narrow.contains('\x1b'), "{narrow:?}");
    assert!(
        narrow.contains('…') && narrow.contains("PATH"),
        "{narrow:?}"
    );
    let narrow = shown("disk list", 60, true);
    for line in narrow.lines() {
        assert!(line.trim_end().chars().count() <= 60, "{line:?}");
    }
}

/// Where every drawing begins.
const HOME: &str = "\x1b[H";

/// The other screen is left, and the cursor is back.
const LEFT: &str = "\x1b[?25h\x1b[?1049l";

pub fn top_in_a_terminal(_: &World, shell: &Shell) {
    shell
        .ask("volume create shown --size 64Mi --replicas 1")
        .ends_with(0);
    shell
        .ask("top")
        .ends_with(1)
        .has(&["needs a terminal", "--once"]);
    shell
        .ask("top --once")
        .ends_with(0)
        .has(&["node-1", "shown", "3/3 ready"]);
    for end in [b'q', 3, 0] {
        let mut screen = Screen::start(shell, "top");
        let before = tcgetattr(&screen.terminal)
            .expect("the terminal's state")
            .local_modes;
        screen.until("q quits");
        screen.until("shown");
        screen.until("\x1b[32m");
        let during = tcgetattr(&screen.terminal)
            .expect("the terminal's state")
            .local_modes;
        assert_ne!(before, during, "keys come one by one, and are not echoed");
        if end == 0 {
            kill_process(Pid::from_child(&screen.child), Signal::TERM).expect("it can be ended");
        } else {
            screen.press(end);
        }
        let mut status = None;
        eventually("top to end", || {
            status = screen.child.try_wait().expect("it can be asked");
            status.is_some()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
        screen.until(LEFT);
        let after = tcgetattr(&screen.terminal)
            .expect("the terminal's state")
            .local_modes;
        assert_eq!(before, after, "the terminal is as it was");
    }
    // What changes is shown without a key.
    let mut screen = Screen::start(shell, "top");
    screen.until("shown");
    shell
        .ask("volume create fresh --size 64Mi --replicas 1")
        .ends_with(0);
    screen.until("fresh");
    screen.press(b'q');
    screen.child.wait().expect("it ends");
    shell.ask("volume delete fresh --yes").ends_with(0);
    shell.ask("volume delete shown --yes").ends_with(0);
}

/// Live views go on through a server that is killed: they say so over what they saw last, and are right again afterwards.
pub fn an_api_that_goes_away_is_shown_and_found_again(world: &mut World, shell: &Shell) {
    let create = |name: &str| {
        let line = format!("volume create {name} --size 64Mi --replicas 1");
        shell.ask(&line).ends_with(0);
    };
    create("steady");
    let mut top = Screen::start(shell, "top");
    let mut lists: Vec<Screen> = ["volume list --watch", "node list --watch"]
        .iter()
        .map(|line| Screen::start(shell, line))
        .collect();
    top.until_drawn(&["steady"], &[]);
    lists[0].until_drawn(&["steady"], &[]);
    lists[1].until_drawn(&["node-3"], &[]);
    create("fresh");
    // Drawn anew, and not below what was there.
    let away = "trying again: ";
    top.until_drawn(&["steady", "fresh"], &[away]);
    lists[0].until_drawn(&["steady", "fresh"], &[away]);

    world.cluster.kill();
    top.until_drawn(&[away, "steady"], &["q quits"]);
    lists[0].until_drawn(&[away, "steady"], &[]);
    lists[1].until_drawn(&[away, "node-3"], &[]);

    world.cluster.start_again();
    top.until_drawn(&["q quits", "steady"], &[away]);
    lists[0].until_drawn(&["steady"], &[away]);
    lists[1].until_drawn(&["node-3"], &[away]);
    create("third");
    top.until_drawn(&["third"], &[away]);
    lists[0].until_drawn(&["third"], &[away]);

    top.press(b'q');
    assert!(top.child.wait().expect("it ends").success());
    for list in &mut lists {
        kill_process(Pid::from_child(&list.child), Signal::TERM).expect("it can be ended");
        list.child.wait().expect("it ends");
    }
    for name in ["steady", "fresh", "third"] {
        shell
            .ask(&format!("volume delete {name} --yes"))
            .ends_with(0);
    }
}
