"""The table of errors: what each means for the work."""

from __future__ import annotations

import sqlite3

import psycopg
import pymysql
import pytest
from sqlalchemy import exc

from shardworker.process.database import CommitInDoubt
from shardworker.process.faults import Fault, fault_of, transient_code


def mysql(code: int, text: str = "") -> Exception:
    return pymysql.err.OperationalError(code, text)


def postgres(sqlstate: str) -> Exception:
    return psycopg.errors.lookup(sqlstate)("text")


def sqlite(statement: str, *arguments: object) -> Exception:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)")
        connection.execute(statement, arguments)
    except sqlite3.Error as error:
        return error
    finally:
        connection.close()
    raise AssertionError("no error")


@pytest.mark.parametrize(
    ("codes", "fault"),
    [
        ("1205 1213 1020 1206 3101 3572 8002 8022 8028 9007", Fault.AGAIN),
        ("2006 2013 2014 2055 1927 1053 1158 1159 1160 1161 4031", Fault.LOST),
        ("1792 1836", Fault.WRONG_SERVER),
        ("1040 1203 1226 2003 2005 3168 1047 8027 9001 9002 9003 9004 9005", Fault.AWAY),
        ("3024 1969 1317", Fault.SLOW),
        ("1062 1264 1406 1048 1366 3819 4025", Fault.VALUE),
        ("1045 1049 1054 1064 1142 1146 1105", Fault.PERMANENT),
    ],
)
def test_numbers_of_mysql_mariadb_and_tidb(codes: str, fault: Fault) -> None:
    for code in codes.split():
        assert fault_of(mysql(int(code))) == (fault, code)


def test_1290_depends_on_the_option_that_it_names() -> None:
    message = "The MySQL server is running with the --{} option so it cannot execute this statement"
    for option in ("read-only", "super-read-only", "read_only"):
        assert fault_of(mysql(1290, message.format(option))) == (Fault.WRONG_SERVER, "1290")
    assert fault_of(mysql(1290, message.format("secure-file-priv"))) == (Fault.PERMANENT, "1290")


def test_1105_of_vitess_depends_on_the_code_in_its_text() -> None:
    text = "target: shop.0.primary: vttablet: rpc error: code = {} desc = no healthy tablet"
    assert fault_of(mysql(1105, text.format("Unavailable"))) == (Fault.AWAY, "1105")
    assert fault_of(mysql(1105, text.format("InvalidArgument"))) == (Fault.PERMANENT, "1105")


@pytest.mark.parametrize(
    ("codes", "fault"),
    [
        ("40001 40P01 55P03", Fault.AGAIN),
        ("08006 08003 57P01 57P02 25P03", Fault.LOST),
        ("25006", Fault.WRONG_SERVER),
        ("53300 57P03 08001", Fault.AWAY),
        ("57014", Fault.SLOW),
        ("22001 22003 23505 23502 23514", Fault.VALUE),
        ("42P01 42703 42601 28P01 3D000 42501", Fault.PERMANENT),
    ],
)
def test_sqlstates_of_postgresql(codes: str, fault: Fault) -> None:
    for code in codes.split():
        assert fault_of(postgres(code)) == (fault, code)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('connection failed: FATAL:  password authentication failed for user "x"', Fault.PERMANENT),
        ('connection failed: FATAL:  database "x" does not exist', Fault.PERMANENT),
        ("connection failed: FATAL:  sorry, too many clients already", Fault.AWAY),
        ("connection failed: connection to server at 127.0.0.1 failed: Connection refused", Fault.AWAY),
        ("connection timeout expired", Fault.AWAY),
        ("consuming input failed: server closed the connection unexpectedly", Fault.LOST),
        ("the connection is closed", Fault.LOST),
    ],
)
def test_psycopg_without_a_sqlstate_is_told_by_its_text(text: str, fault: Fault) -> None:
    found = fault_of(psycopg.OperationalError(text))
    assert found is not None
    assert found[0] is fault


def test_errors_of_sqlite() -> None:
    assert fault_of(sqlite("INSERT INTO t VALUES (1, NULL)")) == (Fault.VALUE, "SQLITE_CONSTRAINT_NOTNULL")
    assert fault_of(sqlite("INSERT INTO nowhere VALUES (1)")) == (Fault.PERMANENT, "SQLITE_ERROR")
    found = fault_of(sqlite("INSERT INTO t VALUES (1, ?)", object()))
    assert found is not None
    assert found[0] is Fault.VALUE


def test_a_locked_sqlite_file_means_again(tmp_path: object) -> None:
    holder = sqlite3.connect(f"{tmp_path}/data.db", isolation_level=None)
    other = sqlite3.connect(f"{tmp_path}/data.db", isolation_level=None, timeout=0)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as caught:
        other.execute("BEGIN IMMEDIATE")
    assert fault_of(caught.value) == (Fault.AGAIN, "SQLITE_BUSY")
    holder.close()
    other.close()


def test_sqlalchemys_errors_are_unwrapped() -> None:
    wrapped = exc.OperationalError("SELECT 1", {}, mysql(1213))
    assert fault_of(wrapped) == (Fault.AGAIN, "1213")
    assert fault_of(exc.TimeoutError("QueuePool limit")) == (Fault.AWAY, "pool")


def test_closed_connections_of_the_driver_are_lost_ones() -> None:
    assert fault_of(pymysql.err.InterfaceError(0, "")) == (Fault.LOST, "0")
    found = fault_of(pymysql.err.Error("Already closed"))
    assert found is not None
    assert found[0] is Fault.LOST


def test_only_passing_errors_have_a_transient_code() -> None:
    assert transient_code(mysql(2013)) == "2013"
    assert transient_code(mysql(1040)) == "1040"
    assert transient_code(mysql(3024)) == "3024"
    for error in (mysql(1062), mysql(1045), ValueError("text"), CommitInDoubt("text")):
        assert transient_code(error) is None
