//! The token that opens the page.

use std::fmt;

/// The shortest token. A random one of this length cannot be guessed with ten attempts per minute and address;
/// a word that a person chose usually has fewer characters.
const MIN_LENGTH: usize = 16;

/// The token that opens the page.
#[derive(Debug)]
pub(crate) struct Token(String);

/// The error of a token that is too short, or that no header can contain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InvalidToken {
    Short(usize),
    NotAscii,
}

impl Token {
    /// Creates a token from a setting. Spaces at both ends are removed.
    pub(crate) fn new(text: &str) -> Result<Self, InvalidToken> {
        let text = text.trim();
        match text.chars().count() {
            length if length < MIN_LENGTH => Err(InvalidToken::Short(length)),
            _ if !text.bytes().all(|byte| byte.is_ascii_graphic()) => Err(InvalidToken::NotAscii),
            _ => Ok(Self(text.to_owned())),
        }
    }

    /// Creates a random token of 32 characters.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(format!("{:032x}", u128::from_ne_bytes(bytes))))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(length) => write!(
                f,
                "the token has {length} characters, so it could be guessed: use at least {MIN_LENGTH} random \
                 ones, such as those that `openssl rand -hex 16` prints"
            ),
            Self::NotAscii => f.write_str(
                "the token contains spaces or characters that a header cannot carry: use letters and digits",
            ),
        }
    }
}

impl std::error::Error for InvalidToken {}
