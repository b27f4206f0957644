//! `HELP` of the commands with subcommands that the proxy answers itself: what is served here, in Redis's shape.

use redfence_core::reply::Reply;

/// A command, and its subcommands: arguments, and what it does.
type Help = (&'static str, &'static [(&'static str, &'static str)]);

#[rustfmt::skip]
const HELP: &[Help] = &[
    ("CLIENT", &[
        ("CACHING (YES|NO)", "Enable/disable tracking of the keys for next command in OPTIN/OPTOUT modes."),
        ("GETNAME", "Return the name of the current connection."),
        ("GETREDIR", "Return the client ID we are redirecting to when tracking is enabled."),
        ("ID", "Return the ID of the current connection."),
        ("INFO", "Return information about the current client connection."),
        ("KILL <ip:port> | <option> <value> [<option> <value> ...]",
         "Kill connections. Options are: ADDR, LADDR, TYPE, USER, SKIPME, ID."),
        ("LIST [TYPE (NORMAL|PUBSUB|MASTER|REPLICA) | ID <id> [<id> ...]]", "Return information about client connections."),
        ("NO-EVICT (ON|OFF)", "Accepted: clients are not evicted."),
        ("NO-TOUCH (ON|OFF)", "Accepted: keys are not evicted."),
        ("REPLY (ON|OFF|SKIP)", "Control the replies sent to the current connection."),
        ("SETINFO <option> <value>", "Set LIB-NAME or LIB-VER of the current connection."),
        ("SETNAME <name>", "Assign the name <name> to the current connection."),
        ("TRACKING (ON|OFF) [REDIRECT <id>] [BCAST] [PREFIX <prefix> [...]] [OPTIN] [OPTOUT] [NOLOOP]",
         "Control server assisted client side caching."),
        ("TRACKINGINFO", "Report tracking status for the current connection."),
        ("UNBLOCK <clientid> [TIMEOUT|ERROR]", "Unblock the specified client of this node, if it waits for a lock or in a blocking command."),
    ]),
    ("COMMAND", &[
        ("(no subcommand)", "Return details about all commands."),
        ("COUNT", "Return the total number of commands in this server."),
        ("DOCS [<command-name> ...]", "Return documentation about multiple commands. If no command names are given, of all."),
        ("GETKEYS <full-command>", "Return the keys from a full command."),
        ("INFO [<command-name> ...]", "Return details about multiple commands. If no command names are given, of all."),
        ("LIST [FILTERBY (MODULE <name> | ACLCAT <category> | PATTERN <pattern>)]", "Return a list of all commands in this server."),
    ]),
    ("CONFIG", &[
        ("GET <pattern> [<pattern> ...]", "Return parameters matching the glob-like <pattern> and their values."),
    ]),
    ("LATENCY", &[
        ("HISTORY <event>", "Nothing: INFO redfence has latencies."),
        ("LATEST", "Nothing: INFO redfence has latencies."),
        ("RESET [<event> ...]", "Answers 0."),
    ]),
    ("MODULE", &[("LIST", "Return a list of loaded modules: none.")]),
    ("PUBSUB", &[
        ("CHANNELS [<pattern>]", "Return the currently active channels matching a <pattern> (default: '*')."),
        ("NUMPAT", "Return number of subscriptions to patterns."),
        ("NUMSUB [<channel> ...]", "Return the number of subscribers for the specified channels, excluding pattern subscriptions."),
    ]),
    ("SLOWLOG", &[
        ("GET [<count>]", "Return top <count> entries: none, scripts and ranges have limits."),
        ("LEN", "Return the length of the slowlog."),
        ("RESET", "Reset the slowlog."),
    ]),
];

/// The answer to `HELP` of one of them.
pub(super) fn lines(command: &str) -> Reply {
    let known = HELP.iter().find(|(name, _)| *name == command);
    let subcommands = known.into_iter().flat_map(|(_, subcommands)| subcommands.iter());
    let help = [("HELP", "Print this help.")];
    let title = format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    let rows =
        subcommands.chain(&help).flat_map(|(usage, text)| [(*usage).to_owned(), format!("    {text}")]);
    Reply::Array(std::iter::once(title).chain(rows).map(|line| Reply::Status(line.into())).collect())
}
