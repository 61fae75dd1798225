//! What the pages tell is what the code does, and what was measured. Tables that are checked here have
//! `<!-- from: guide-tests -->` before them.
