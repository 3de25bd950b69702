//! The secret that readers of metrics must show.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Shorter ones can be tried through.
const LENGTH_MIN: usize = 16;
const LENGTH_MAX: usize = 4096;

/// A bearer token. Never printed.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

#[derive(Debug, Error)]
pub enum TokenError {
    #[error("cannot make the token for metrics in {}; name another file with --metrics-token-file", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the token for metrics in {}; name another file with --metrics-token-file", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} holds no token: {LENGTH_MIN} to {LENGTH_MAX} printable characters in one line; remove the file to have one made", path.display())]
    Unusable { path: PathBuf },
}

impl Token {
    /// Reads the file. If there is none, it is made, for its owner alone.
    pub fn read_or_make(path: &Path) -> Result<Self, TokenError> {
        if !path.exists() {
            make(path).map_err(|source| TokenError::Make {
                path: path.to_owned(),
                source,
            })?;
        }
        let text = fs::read_to_string(path).map_err(|source| TokenError::Read {
            path: path.to_owned(),
            source,
        })?;
        let token = text.trim();
        let is_usable = (LENGTH_MIN..=LENGTH_MAX).contains(&token.len())
            && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_usable {
            return Err(TokenError::Unusable {
                path: path.to_owned(),
            });
        }
        Ok(Self(token.to_owned()))
    }

    /// Whether this is the value of `Authorization` with this token. Takes as long for a near miss as for a far one.
    #[must_use]
    pub(crate) fn is_shown_by(&self, authorization: &[u8]) -> bool {
        const SCHEME: &[u8] = b"bearer ";
        let Some((scheme, shown)) = authorization.split_at_checked(SCHEME.len()) else {
            return false;
        };
        if !scheme.eq_ignore_ascii_case(SCHEME) || shown.len() != self.0.len() {
            return false;
        }
        let pairs = shown.iter().zip(self.0.as_bytes());
        pairs.fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
    }
}

/// Written under another name and linked into place: several processes may want the same file at once, and none may
/// read half of it or replace another's.
fn make(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
    }
    // Two random UUIDs: 244 bits from the system's generator.
    let (one, other) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let draft = PathBuf::from(draft);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&draft)?;
    let written = writeln!(file, "{}{}", one.simple(), other.simple());
    let linked = written.and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_made_once_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("inner/metrics-token");
        let first = Token::read_or_make(&path).expect("a token");
        let second = Token::read_or_make(&path).expect("a token");
        assert_eq!(first.0, second.0);
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let names = fs::read_dir(folder.path().join("inner")).expect("a folder");
        assert_eq!(names.count(), 1, "no draft is left");
    }

    #[test]
    fn a_file_without_a_token_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("metrics-token");
        for text in ["", "\n", "short", "two words that are long enough"] {
            fs::write(&path, text).expect("written");
            let error = Token::read_or_make(&path).expect_err("no token");
            assert!(matches!(error, TokenError::Unusable { .. }), "{text:?}");
        }
    }

    #[test]
    fn only_the_whole_token_counts() {
        let token = Token("0123456789abcdef".to_owned());
        let rows = [
            ("Bearer 0123456789abcdef", true),
            ("bearer 0123456789abcdef", true),
            ("Bearer 0123456789abcdee", false),
            ("Bearer 0123456789abcde", false),
            ("Bearer 0123456789abcdef0", false),
            ("Basic  0123456789abcdef", false),
            ("0123456789abcdef", false),
            ("", false),
        ];
        for (value, expected) in rows {
            assert_eq!(token.is_shown_by(value.as_bytes()), expected, "{value:?}");
        }
    }
}
