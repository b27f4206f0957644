//! One connection to a database, through the database's own command-line program: a real client whose writes can be held up by stopping it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// After each answer, so that its end is seen.
const END: &str = "--end--";

pub struct SqlShell {
    child: Child,
    words: ChildStdin,
    rows: BufReader<ChildStdout>,
    /// What makes the program print a line: `\echo` and the text, say.
    end: String,
}

impl SqlShell {
    /// `end` makes a text a command that prints it. What the program says to standard error is dropped.
    pub fn start(mut command: Command, end: impl Fn(&str) -> String) -> Result<SqlShell, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
        let (words, rows) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Ok(SqlShell { child, words, rows: BufReader::new(rows), end: end(END) })
    }

    /// The rows of one statement. An error gives none.
    pub fn ask(&mut self, statement: &str) -> Result<Vec<String>, String> {
        self.send(statement)?;
        self.receive()
    }

    /// Hands the statement over and does not wait.
    pub fn send(&mut self, statement: &str) -> Result<(), String> {
        let sent = writeln!(self.words, "{statement};\n{}", self.end).and_then(|()| self.words.flush());
        sent.map_err(|error| format!("the SQL shell: {error}"))
    }

    pub fn receive(&mut self) -> Result<Vec<String>, String> {
        let mut rows = Vec::new();
        loop {
            let mut row = String::new();
            if self.rows.read_line(&mut row).map_err(|error| format!("the SQL shell: {error}"))? == 0 {
                return Err("the SQL shell has ended".into());
            }
            match row.trim_end() {
                END => return Ok(rows),
                row => rows.push(row.to_string()),
            }
        }
    }

    /// From here to [`SqlShell::resume`] whatever is sent waits on its way to the database.
    pub fn pause(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill takes two integers; the child was not waited for, so its number is still its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }
}

impl Drop for SqlShell {
    fn drop(&mut self) {
        // An error here means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
