//! A contestant in the list of a program: its description, and how it is made.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::contestant::{Contestant, Description, Failure, Offer, Reply, Setup};
use crate::external::Program;

type Make = dyn Fn(Setup) -> Reply<'static, Arc<dyn Contestant>> + Send + Sync;

/// A contestant that can be made anew for each attack.
#[derive(Clone)]
pub struct Entry {
    pub(crate) description: Description,
    make: Arc<Make>,
    /// Starts the same contestant in a process of its own.
    pub(crate) command: Vec<String>,
    /// Whether the command is that of another program.
    pub(crate) is_program: bool,
    /// More arguments for its Redis.
    pub(crate) server_arguments: Vec<String>,
}

impl Entry {
    /// A limiter in Rust. `make` makes one for a limit.
    pub fn new<C, F, R>(description: Description, make: F) -> Self
    where
        C: Contestant + 'static,
        F: Fn(Setup) -> R + Send + Sync + 'static,
        R: Future<Output = Result<C, Failure>> + Send + 'static,
    {
        // Without the path of its own file, a program has no processes to attack.
        let own = std::env::current_exe().unwrap_or_default();
        let own = own.display().to_string();
        let command = vec![own, "serve".to_owned(), description.name.clone()];
        let make = move |setup| -> Reply<'static, Arc<dyn Contestant>> {
            let made = make(setup);
            Box::pin(async move { Ok(Arc::new(made.await?) as Arc<dyn Contestant>) })
        };
        Self {
            description,
            make: Arc::new(make),
            command,
            is_program: false,
            server_arguments: Vec::new(),
        }
    }

    /// Adds arguments to the command of its Redis, such as a module to load.
    #[must_use]
    pub fn server_arguments(mut self, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().copied().map(str::to_owned);
        self.server_arguments.extend(arguments);
        self
    }

    /// A limiter in another program, which speaks the line protocol.
    ///
    /// # Errors
    ///
    /// Returns an error if the program does not start or does not describe itself.
    pub fn program(command: &[&str]) -> Result<Self, Failure> {
        let command: Vec<_> = command.iter().copied().map(str::to_owned).collect();
        let mut description = Program::start(&command, None)?.description;
        // The protocol has no word for it: what a dropped call takes, nobody can give back.
        description.offers.retain(|offer| *offer != Offer::Cancel);
        let started = command.clone();
        let make = move |setup: Setup| -> Reply<'static, Arc<dyn Contestant>> {
            let program = Program::start(&started, None);
            Box::pin(async move {
                let program = program?;
                program.set_up(&setup).await?;
                Ok(Arc::new(program) as Arc<dyn Contestant>)
            })
        };
        Ok(Self {
            description,
            make: Arc::new(make),
            command,
            is_program: true,
            server_arguments: Vec::new(),
        })
    }

    pub(crate) async fn make(&self, setup: Setup) -> Result<Arc<dyn Contestant>, Failure> {
        (self.make)(setup).await
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Entry");
        fields.field("description", &self.description);
        fields
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}
