//! The notes of all processes, and what they prove.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::Algorithm;

use super::tree::Tree;
use crate::spans::{Admission, Admissions};
use crate::support::algorithms::promised;

/// The clock has whole microseconds.
const CLOCK_ERROR: Duration = Duration::from_micros(2);

/// One answer. It is a line of a file: a word, then numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Note {
    /// Times are microseconds of the system clock, before the check and after the answer.
    Admitted {
        user: usize,
        cost: u32,
        start: u64,
        end: u64,
        /// Whether the process held the units.
        leased: bool,
    },
    /// One of the levels that refused, and how many units other levels were charged in passing.
    Refused {
        level: usize,
        passing: u32,
    },
    Failed {
        cost: u32,
    },
    /// The caller was dropped.
    Cancelled {
        cost: u32,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admitted {
                user,
                cost,
                start,
                end,
                leased,
            } => write!(
                f,
                "admitted {user} {cost} {start} {end} {}",
                u8::from(*leased)
            ),
            Self::Refused { level, passing } => write!(f, "refused {level} {passing}"),
            Self::Failed { cost } => write!(f, "failed {cost}"),
            Self::Cancelled { cost } => write!(f, "cancelled {cost}"),
        }
    }
}

impl Note {
    fn parse(line: &str) -> Option<(usize, Self)> {
        let (tree, note) = line.split_once(' ')?;
        let mut words = note.split(' ');
        let word = words.next()?;
        let numbers: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let small = |at: usize| u32::try_from(*numbers.get(at)?).ok();
        let index = |at: usize| usize::try_from(*numbers.get(at)?).ok();
        let note = match word {
            "admitted" => Self::Admitted {
                user: index(0)?,
                cost: small(1)?,
                start: *numbers.get(2)?,
                end: *numbers.get(3)?,
                leased: *numbers.get(4)? == 1,
            },
            "refused" => Self::Refused {
                level: index(0)?,
                passing: small(1)?,
            },
            "failed" => Self::Failed { cost: small(0)? },
            "cancelled" => Self::Cancelled { cost: small(0)? },
            _ => return None,
        };
        Some((tree.parse().ok()?, note))
    }
}

/// The notes of one tree.
#[derive(Debug)]
pub(super) struct Notes {
    tree: Tree,
    /// The admissions of each user.
    admitted: Vec<Vec<Admission>>,
    /// The units that the processes held.
    pub(super) leased: u32,
    /// How often each level refused.
    pub(super) refused: Vec<u32>,
    /// The checks that were refused after other levels were charged, and those units.
    pub(super) passing: (u32, u32),
    pub(super) failed: u32,
    /// The units of checks whose outcome nobody knows.
    pub(super) unknown: u32,
    pub(super) cancelled: u32,
}

impl Notes {
    fn new(tree: &Tree) -> Self {
        Self {
            admitted: vec![Vec::new(); tree.users()],
            leased: 0,
            refused: vec![0; tree.0.len()],
            passing: (0, 0),
            failed: 0,
            unknown: 0,
            cancelled: 0,
            tree: tree.clone(),
        }
    }

    /// Reads the files of all processes, which may still write them.
    pub(super) fn read(files: impl Iterator<Item = PathBuf>, trees: &[Tree]) -> Vec<Self> {
        let mut all: Vec<Self> = trees.iter().map(Self::new).collect();
        // A process that was started just now, or killed at once, has none.
        for text in files.filter_map(|file| fs::read_to_string(file).ok()) {
            // A process that was killed may have left half a line.
            let lines = text.split_inclusive('\n');
            for line in lines.filter_map(|line| line.strip_suffix('\n')) {
                let note = Note::parse(line);
                let (tree, note) = note.unwrap_or_else(|| panic!("no note: {line:?}"));
                all[tree].add(note);
            }
        }
        all
    }

    fn add(&mut self, note: Note) {
        match note {
            Note::Admitted {
                user,
                cost,
                start,
                end,
                leased,
            } => {
                self.leased += if leased { cost } else { 0 };
                self.admitted[user].push(Admission {
                    start: Duration::from_micros(start),
                    end: Duration::from_micros(end),
                    units: cost,
                });
            }
            Note::Refused { level, passing } => {
                self.refused[level] += 1;
                self.passing.0 += u32::from(passing > 0);
                self.passing.1 += passing;
            }
            Note::Failed { cost } => {
                self.failed += 1;
                self.unknown += cost;
            }
            Note::Cancelled { cost } => {
                self.cancelled += 1;
                self.unknown += cost;
            }
        }
    }

    /// The admissions of each key of a level.
    pub(super) fn of_level(&self, level: usize) -> Vec<Admissions> {
        let mut of_keys: BTreeMap<usize, Vec<Admission>> = BTreeMap::new();
        for (user, admitted) in self.admitted.iter().enumerate() {
            let key = self.tree.key_of(user, level);
            of_keys.entry(key).or_default().extend(admitted);
        }
        of_keys.into_values().map(Admissions::new).collect()
    }

    /// The units of each key of a level that callers know to be admitted.
    pub(super) fn told(&self, level: usize) -> Vec<u32> {
        let totals = self.of_level(level).into_iter();
        let totals = totals.map(|of_key| u32::try_from(of_key.total()).expect("few"));
        totals.collect()
    }

    pub(super) fn total(&self) -> u32 {
        self.told(0).iter().sum()
    }

    /// The most units of a key of the first level in any span as long as its first window.
    pub(super) fn most_in_a_window(&self) -> u64 {
        let quotas = self.tree.0[0].quotas();
        let window = quotas.iter().next().expect("a quota").window();
        let of_level = self.of_level(0).into_iter();
        let most = of_level.map(|of_key| of_key.most_within(window - CLOCK_ERROR));
        most.max().unwrap_or(0)
    }

    /// Panics if a key was admitted more in a span as long as a window than its algorithm promises.
    pub(super) fn assert_no_span_exceeds_a_limit(&self) {
        for (index, level) in self.tree.0.iter().enumerate() {
            let of_level = self.of_level(index);
            for quota in level.quotas().iter() {
                let span = quota.window() - CLOCK_ERROR;
                let most = of_level.iter().map(|of_key| of_key.most_within(span)).max();
                let promised = promised(quota.algorithm(), quota.limit());
                assert!(most <= Some(promised), "{}, {quota}: {most:?}", level.name);
            }
        }
    }

    /// Panics if a key was admitted more than its limit in a window of `FixedWindow`. The server and all processes
    /// have one clock.
    pub(super) fn assert_no_aligned_window_exceeds_a_limit(&self) {
        for (index, level) in self.tree.0.iter().enumerate() {
            let quotas = level.quotas();
            let quotas = quotas.iter();
            for quota in quotas.filter(|quota| quota.algorithm() == Algorithm::FixedWindow) {
                let of_level = self.of_level(index).into_iter();
                let most = of_level.map(|of_key| of_key.most_aligned(quota.window()));
                let most = most.max();
                assert!(
                    most <= Some(quota.limit().into()),
                    "{}, {quota}: {most:?} in an aligned window",
                    level.name
                );
            }
        }
    }

    /// Panics if the lasting quota of a key counts more than its limit, or less than what callers know to be
    /// admitted. Returns how many units more each level counts: nobody knows of them.
    pub(super) fn stranded(&self, counted: &[Vec<u32>]) -> Vec<u32> {
        let mut stranded = Vec::new();
        for (index, (level, counted)) in self.tree.0.iter().zip(counted).enumerate() {
            let told = self.told(index);
            for (told, counted) in told.iter().zip(counted) {
                assert!(
                    told <= counted && *counted <= level.lasting_limit(),
                    "{}: {told} told, {counted} counted",
                    level.name
                );
            }
            stranded.push(counted.iter().sum::<u32>() - told.iter().sum::<u32>());
        }
        stranded
    }

    /// Panics if a key counts anything else than its keys of the level below: a level was charged without the
    /// others.
    pub(super) fn assert_levels_count_the_same(&self, counted: &[Vec<u32>]) {
        for (index, level) in self.tree.0.iter().enumerate() {
            let mut below = vec![0; level.keys.len()];
            for (user, of_user) in counted[0].iter().enumerate() {
                below[self.tree.key_of(user, index)] += of_user;
            }
            assert_eq!(counted[index], below, "{}", level.name);
        }
    }
}
