"""What an error of the database means for the work: the one table of codes, for every server and driver.

Codes are those of the server, as text: MySQL's and MariaDB's numbers (TiDB, Vitess and ProxySQL speak that protocol),
PostgreSQL's SQLSTATE, SQLite's names. Drivers are not imported here, so that an installation needs only its own.

Sources: MySQL's and MariaDB's error references, PostgreSQL's appendix A, sqlite.org/rescode.html, TiDB's list of
error codes, Vitess' vterrors.
"""

from __future__ import annotations

import re
import sqlite3
from enum import Enum

from sqlalchemy import exc


class Fault(Enum):
    AGAIN = "run the transaction again"  # the whole of it: 1205 rolls back only its statement
    LOST = "connection lost, outcome unknown"
    WRONG_SERVER = "a server that cannot write, after a failover"
    AWAY = "not there yet, or overloaded"
    SLOW = "took too long"  # half the batch may pass
    VALUE = "a value that cannot be written"
    PERMANENT = "refused for good"


_MYSQL = {
    Fault.AGAIN: "1020 1205 1206 1213 1412 1615 3101 3572 8002 8022 8028 9007",
    Fault.LOST: "0 1053 1158 1159 1160 1161 1184 1927 2006 2013 2014 2027 2055 3169 4031 8501",
    Fault.WRONG_SERVER: "1792 1836 1874",
    Fault.AWAY: "1021 1037 1040 1041 1047 1129 1135 1203 1226 2002 2003 2005 2026 3168 8027 9001 9002 9003 9004 9005",
    Fault.SLOW: "1028 1317 1969 3024",
    Fault.VALUE: "1022 1048 1062 1118 1138 1153 1169 1216 1217 1263 1264 1265 1292 1300 1365 1366 1367 1369 1406 1411 "
    "1416 1441 1451 1452 1525 1526 1557 1586 1644 1690 1748 1761 1762 3140 3141 3144 3156 3157 3819 4025",
}
_POSTGRES = {  # a whole class by its two digits; single codes go first
    Fault.AGAIN: "40001 40P01 55P03",
    Fault.LOST: "08 25P03 40003 57P01 57P02 57P05",
    Fault.WRONG_SERVER: "25006",
    Fault.AWAY: "08001 08004 53 55006 57P03 58030",
    Fault.SLOW: "57014",
    Fault.VALUE: "22 23 44 54000 P0001",
}
_SQLITE = {  # extended codes are named by their first two words: SQLITE_BUSY_SNAPSHOT is a SQLITE_BUSY
    Fault.AGAIN: "SQLITE_BUSY SQLITE_LOCKED SQLITE_SCHEMA",
    Fault.AWAY: "SQLITE_FULL SQLITE_IOERR SQLITE_NOMEM SQLITE_PROTOCOL",
    Fault.SLOW: "SQLITE_INTERRUPT",
    Fault.VALUE: "SQLITE_CONSTRAINT SQLITE_MISMATCH SQLITE_RANGE SQLITE_TOOBIG",
}


def _by_code(table: dict[Fault, str]) -> dict[str, Fault]:
    return {code: fault for fault, codes in table.items() for code in codes.split()}


_MYSQL_CODES, _POSTGRES_CODES, _SQLITE_CODES = map(_by_code, (_MYSQL, _POSTGRES, _SQLITE))
_PASSING = {Fault.AGAIN, Fault.LOST, Fault.WRONG_SERVER, Fault.AWAY, Fault.SLOW}
_VITESS_CODE = re.compile(r"\bcode = (?!InvalidArgument|Unimplemented|PermissionDenied|NotFound|AlreadyExists)\w+")

# psycopg gives no SQLSTATE where libpq could not connect, only the text; what none of these says will pass.
_POSTGRES_REFUSALS = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) \".*\" does not exist"
    r"|invalid connection option|invalid port|permission denied for database"
)


def fault_of(error: BaseException) -> tuple[Fault, str] | None:
    """What the error means, and its code; None: it does not come from a database.

    Takes the drivers' own errors and SQLAlchemy's around them. CommitInDoubt is none of them: what it means only
    a look at the data can tell.
    """
    if isinstance(error, exc.TimeoutError):
        return Fault.AWAY, "pool"  # all DB_CONNECTIONS are in use
    if isinstance(error, exc.DisconnectionError | exc.PendingRollbackError | exc.ResourceClosedError):
        return Fault.LOST, "closed"
    if isinstance(error, exc.InvalidRequestError) and "connection is closed" in str(error):
        return Fault.LOST, "closed"  # a new connection was dead too, twice
    if isinstance(error, exc.DBAPIError) and error.orig is not None:
        error = error.orig
    drivers = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    if "pymysql" in drivers or "MySQLdb" in drivers:
        return _mysql_fault(error)
    if "psycopg" in drivers:
        return _postgres_fault(error)
    if isinstance(error, sqlite3.Error):
        return _sqlite_fault(error)
    return None


def transient_code(error: BaseException) -> str | None:
    """The code of an error that passes (`Patience.code_of`); None for every other error."""
    found = fault_of(error)
    return found[1] if found and found[0] in _PASSING else None


def _mysql_fault(error: BaseException) -> tuple[Fault, str]:
    if not error.args or not isinstance(error.args[0], int):
        # The driver itself refused: a value without a form in SQL (nan), or a connection that it has closed.
        return (Fault.LOST, "closed") if "closed" in str(error).lower() else (Fault.VALUE, type(error).__name__)
    code, text = str(error.args[0]), str(error.args[-1])
    if code == "1290" and re.search("read[-_ ]only", text):  # 1290 names the option that forbids the statement
        return Fault.WRONG_SERVER, code
    if code == "1105" and _VITESS_CODE.search(text):
        return Fault.AWAY, code
    return _MYSQL_CODES.get(code, Fault.PERMANENT), code


def _postgres_fault(error: BaseException) -> tuple[Fault, str]:
    code, text = getattr(error, "sqlstate", None), str(error)
    if code:
        fault = _POSTGRES_CODES.get(code) or _POSTGRES_CODES.get(code[:2])
        return fault or Fault.PERMANENT, code
    kinds = {cls.__name__ for cls in type(error).__mro__}
    if "OperationalError" in kinds:
        if _POSTGRES_REFUSALS.search(text):
            return Fault.PERMANENT, "connect"
        is_connecting = "connection failed" in text or "connection timeout" in text or "could not" in text
        return (Fault.AWAY, "connect") if is_connecting else (Fault.LOST, "connection")
    if "DataError" in kinds or "cannot adapt" in text or "cannot dump" in text:
        return Fault.VALUE, type(error).__name__  # NUL in text, a type without a form in SQL
    return Fault.PERMANENT, type(error).__name__


def _sqlite_fault(error: sqlite3.Error) -> tuple[Fault, str]:
    name = getattr(error, "sqlite_errorname", None)  # errors of the module itself have none
    if name is None:
        text = str(error)
        if "closed" in text:
            return Fault.LOST, "closed"
        is_value = isinstance(error, sqlite3.IntegrityError | sqlite3.DataError) or "binding parameter" in text
        return (Fault.VALUE if is_value else Fault.PERMANENT), type(error).__name__
    return _SQLITE_CODES.get("_".join(name.split("_")[:2]), Fault.PERMANENT), name
