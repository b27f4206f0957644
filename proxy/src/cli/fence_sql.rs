//! `redfence fence-sql`: prints the statements that make a table refuse the writes of a stale holder.
//!
//! A column keeps the highest fence that has written each row; a trigger compares it with the fence that the connection was told. No statement
//! of the application changes. The text for PostgreSQL is that of the SDKs (`clients/python/src/redfence/postgres.py`): both give the same
//! column, function and trigger.

use super::exit::Failure;
use super::output::Output;
use clap::{Args, ValueEnum};

pub const EXAMPLES: &str = "\
Examples:
  redfence fence-sql wallets | psql -v ON_ERROR_STOP=1 shop
  redfence fence-sql wallets --dialect mysql | mariadb shop

Then tell each transaction its fence:
  PostgreSQL:      SELECT set_config('redfence.fence', '1794772375201520', true)    until the end of the transaction
                   PGOPTIONS=\"-c redfence.fence=$REDFENCE_FENCE\" psql …             for a whole connection
  MySQL, MariaDB:  SET @redfence_fence = 1794772375201520                           until the connection ends

A write with an older fence than that of the row, or with none, is refused with SQLSTATE RF001 (PostgreSQL) or 45000; one with a fence that is
more than an hour ahead of the clock of the database with RF002 or 45000: it would make every real fence stale.";

#[derive(Debug, Args)]
pub struct FenceSqlArgs {
    /// The table: a plain SQL name, with its schema or database where need be
    #[arg(value_name = "TABLE", value_parser = plain_name)]
    pub table: String,

    /// The column that keeps the fence
    #[arg(long, value_name = "NAME", default_value = "fence", value_parser = plain_column)]
    pub column: String,

    /// mysql is for MariaDB, too
    #[arg(long, value_enum, default_value_t = Dialect::Postgresql)]
    pub dialect: Dialect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dialect {
    #[value(alias = "postgres")]
    Postgresql,
    #[value(alias = "mariadb")]
    Mysql,
}

/// `redfence_check_` and the table are a name of PostgreSQL, which cuts it off at 63; `redfence_`, the table and `_insert` one of MySQL, which has 64.
const NAME_BYTES_MAX: usize = 48;

/// Names are not quoted in the text, so that they mean what they mean in every other statement.
fn plain_name(text: &str) -> Result<String, String> {
    if text.rsplit('.').next().is_some_and(|name| name.len() > NAME_BYTES_MAX) {
        return Err(format!(
            "longer than {NAME_BYTES_MAX} characters: function and triggers need a name of their own"
        ));
    }
    let is_plain = |part: &str| {
        let mut chars = part.chars();
        // Two would end the quoted text of a function.
        let has_quote = part.matches('$').count() > 1;
        !has_quote
            && chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$')
    };
    match text.split('.').collect::<Vec<_>>()[..] {
        [name] if is_plain(name) => Ok(text.to_owned()),
        [schema, name] if is_plain(schema) && is_plain(name) => Ok(text.to_owned()),
        _ => Err("not a plain SQL name (letters, digits and _, with the schema before a dot)".to_owned()),
    }
}

fn plain_column(text: &str) -> Result<String, String> {
    match text.contains('.') {
        true => Err("a column has no schema".to_owned()),
        false => plain_name(text),
    }
}

pub(crate) async fn run(args: &FenceSqlArgs) -> Result<(), Failure> {
    let text = match args.dialect {
        Dialect::Postgresql => postgresql(&args.table, &args.column),
        Dialect::Mysql => mysql(&args.table, &args.column),
    };
    Output::new().line(text.trim_end())
}

/// One statement, so that it is done as a whole or not at all in whatever client: where it is run again, no write gets in between the old
/// trigger and the new one. The function is in the schema of the table, where its owner may create one.
fn postgresql(table: &str, column: &str) -> String {
    let (schema, name) = table.rsplit_once('.').map_or(("", table), |(schema, name)| (schema, name));
    let function = match schema {
        "" => format!("redfence_check_{name}"),
        schema => format!("{schema}.redfence_check_{name}"),
    };
    format!(
        "\
DO $redfence$ BEGIN
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} bigint NOT NULL DEFAULT 0;

CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    mine bigint := coalesce(nullif(current_setting('redfence.fence', true), ''), '0')::bigint;
BEGIN
    IF mine > extract(epoch FROM clock_timestamp()) * 1000000 + 3600000000 THEN
        RAISE EXCEPTION 'fence % is from the future: more than 1 hour ahead of the clock of this server', mine USING ERRCODE = 'RF002';
    END IF;
    IF TG_OP <> 'INSERT' AND OLD.{column} > mine THEN
        RAISE EXCEPTION 'stale fence % is behind %', mine, OLD.{column} USING ERRCODE = 'RF001';
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.{column} := mine;
    RETURN NEW;
END $$;

DROP TRIGGER IF EXISTS redfence_fence ON {table};
CREATE TRIGGER redfence_fence BEFORE INSERT OR UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION {function}();
END $redfence$;
"
    )
}

/// A trigger of MySQL has one event, its name is one of the schema, and `ADD COLUMN IF NOT EXISTS` is MariaDB's alone: the column is
/// looked for first, so that the text may be run again. The table is locked from before the old triggers go until the new ones are there.
fn mysql(table: &str, column: &str) -> String {
    let (schema, name) = match table.split_once('.') {
        Some((schema, name)) => (format!("'{schema}'"), name),
        None => ("DATABASE()".to_owned(), table),
    };
    let prefix = table.strip_suffix(name).unwrap_or_default();
    let trigger = format!("{prefix}redfence_{name}");
    // `NOW()` is the same for all rows of a statement; `UNIX_TIMESTAMP` does not depend on the time zone of the connection.
    let future = "    IF COALESCE(@redfence_fence, 0) > UNIX_TIMESTAMP(NOW(6)) * 1000000 + 3600000000 THEN
        SET @redfence_message = CONCAT('fence ', @redfence_fence, ' is from the future: more than 1 hour ahead of the clock of this server');
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = @redfence_message;
    END IF;
";
    format!(
        "\
SET @redfence_sql = (SELECT IF(COUNT(*) = 0,
    'ALTER TABLE {table} ADD COLUMN {column} BIGINT NOT NULL DEFAULT 0', 'DO 0')
    FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = '{name}' AND COLUMN_NAME = '{column}');
PREPARE redfence_statement FROM @redfence_sql;
EXECUTE redfence_statement;
DEALLOCATE PREPARE redfence_statement;

LOCK TABLES {table} WRITE;
DROP TRIGGER IF EXISTS {trigger}_insert;
DROP TRIGGER IF EXISTS {trigger}_update;
DROP TRIGGER IF EXISTS {trigger}_delete;

DELIMITER $$
CREATE TRIGGER {trigger}_insert BEFORE INSERT ON {table} FOR EACH ROW
BEGIN
{future}    SET NEW.{column} = COALESCE(@redfence_fence, 0);
END$$
CREATE TRIGGER {trigger}_update BEFORE UPDATE ON {table} FOR EACH ROW
BEGIN
{future}    IF OLD.{column} > COALESCE(@redfence_fence, 0) THEN
        SET @redfence_message = CONCAT('stale fence ', COALESCE(@redfence_fence, 0), ' is behind ', OLD.{column});
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = @redfence_message;
    END IF;
    SET NEW.{column} = COALESCE(@redfence_fence, 0);
END$$
CREATE TRIGGER {trigger}_delete BEFORE DELETE ON {table} FOR EACH ROW
BEGIN
{future}    IF OLD.{column} > COALESCE(@redfence_fence, 0) THEN
        SET @redfence_message = CONCAT('stale fence ', COALESCE(@redfence_fence, 0), ' is behind ', OLD.{column});
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = @redfence_message;
    END IF;
END$$
DELIMITER ;
UNLOCK TABLES;
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_become_sql() {
        for good in ["wallets", "shop.wallets", "_w$1"] {
            assert_eq!(plain_name(good), Ok(good.to_owned()));
        }
        for bad in ["", "a b", "a;b", "a.b.c", "1a", "a.", "\"a\"", "a'b", "é", "a$$b", "a$x$b"] {
            assert!(plain_name(bad).is_err(), "{bad}");
        }
        assert!(plain_column("a.b").is_err());
        assert!(plain_name(&"a".repeat(48)).is_ok() && plain_name(&"a".repeat(49)).is_err());
    }

    #[test]
    fn a_trigger_of_mysql_is_in_the_schema_of_its_table() {
        let text = mysql("shop.wallets", "fence");
        assert!(text.contains("CREATE TRIGGER shop.redfence_wallets_update BEFORE UPDATE ON shop.wallets"));
        assert!(text.contains("TABLE_SCHEMA = 'shop' AND TABLE_NAME = 'wallets'"));
        assert!(mysql("wallets", "fence").contains("TABLE_SCHEMA = DATABASE()"));
    }
}
