from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from shardworker.config import Settings, describe, duration, load, markdown
from shardworker.errors import ConfigurationError, Exit
from shardworker.setting_types import is_name

PASSWORD = "p@ss/w#rd%41:+"
ENCODED = "p%40ss%2Fw%23rd%2541%3A%2B"
SERVER = {"DATABASE_URL": "mysql://app@db:3306/shop", "REDIS_URL": "redis://cache:6379/0"}


def env(**settings: str) -> dict[str, str]:
    return {f"SHARDWORKER_{name}": value for name, value in settings.items()}


def problems(environ: Mapping[str, str], **how: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        load(environ, **how)
    assert refused.value.exit_code == Exit.REFUSED
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None  # pydantic's error would bring the values into a traceback
    return list(refused.value.problems)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shardworker.toml").write_text('batch_size = 200\nlease = "40s"\ngrace = 10\n')
    return tmp_path


# ------------------------------------------------------------------------------------------------------ Sources


def test_without_any_setting_the_embedded_default_is_meant() -> None:
    settings = load({})
    assert settings.database_url.get_secret_value() == "sqlite:///.shardworker/data.db"
    assert settings.redis_url is None
    assert settings.run == "main"
    assert settings.slot_size is None
    assert settings.batch_size == 1000
    assert (settings.lease_s, settings.grace_s, settings.retry_for_s) == (30.0, 25.0, 300.0)
    assert settings.keep_run_s == 30 * 86_400
    assert settings.checkpoint == "redis"


def test_the_default_database_lies_in_the_folder(tmp_path: Path) -> None:
    expected = f"sqlite:///{tmp_path}/.shardworker/data.db"
    assert load({}, folder=tmp_path).database_url.get_secret_value() == expected


def test_each_source_wins_over_those_below_it(folder: Path) -> None:
    job = {"batch_size": 100, "attempts": 7}
    (folder / "size").write_text("300\n")

    def batch_size(environ: Mapping[str, str], **how: Any) -> tuple[int, str]:
        settings = load(environ, **how)
        return settings.batch_size, settings.origin("BATCH_SIZE").source

    file = folder / "size"
    assert batch_size({}, job_settings=job) == (100, "job")
    assert batch_size({}, job_settings=job, folder=folder) == (200, "shardworker.toml")
    assert batch_size(env(BATCH_SIZE_FILE=str(file)), job_settings=job, folder=folder) == (300, f"file {file}")
    assert batch_size(env(BATCH_SIZE="400"), job_settings=job, folder=folder) == (400, "environment")
    assert batch_size(env(BATCH_SIZE="400"), options={"batch-size": "500"}, job_settings=job, folder=folder) == (
        500,
        "option --batch-size",
    )
    assert load({}, job_settings=job, folder=folder).attempts == 7
    assert load({}).origin("BATCH_SIZE").source == "default"


def test_a_file_of_settings_may_write_keys_with_a_hyphen_and_numbers_without_quotes(tmp_path: Path) -> None:
    (tmp_path / "shardworker.toml").write_text('batch-size = 1_5\nlease = 1.5\nmax_failed_rows = "3"\n')
    settings = load({}, folder=tmp_path)
    assert (settings.batch_size, settings.lease_s, settings.max_failed_rows) == (15, 1.5, 3)


def test_a_file_variable_loses_one_newline_and_is_remembered_to_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret \n\n")
    settings = load(env(**SERVER, DATABASE_PASSWORD_FILE=str(file)))
    assert settings.database_password is not None
    assert settings.database_password.get_secret_value() == "secret \n"
    assert settings.origin("DATABASE_PASSWORD").file == file


def test_a_variable_and_its_file_variable_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("5")
    (only,) = problems(env(BATCH_SIZE="5", BATCH_SIZE_FILE=str(tmp_path / "x")))
    assert "SHARDWORKER_BATCH_SIZE" in only
    assert "SHARDWORKER_BATCH_SIZE_FILE" in only


@pytest.mark.parametrize("path", ["", "missing", "."])
def test_a_file_that_cannot_be_read_is_one_problem_and_not_two(tmp_path: Path, path: str) -> None:
    """Without the file REDIS_URL is unknown, not missing: the rule about server databases has nothing to say."""
    environ = env(DATABASE_URL=SERVER["DATABASE_URL"], REDIS_URL_FILE=path)
    (only,) = problems(environ, folder=tmp_path)
    assert "SHARDWORKER_REDIS_URL_FILE" in only


def test_zero_and_false_are_not_swallowed_by_a_default(tmp_path: Path) -> None:
    """`value or default` would make a limit of no failed rows, or no grace, out of one somebody wrote."""
    (tmp_path / "shardworker.toml").write_text("max_failed_rows = 9\ngrace = 0\n")
    settings = load(env(MAX_FAILED_ROWS="0"), folder=tmp_path, job_settings={"max_failed_rows": 5})
    assert settings.max_failed_rows == 0
    assert settings.grace_s == 0.0
    assert load({}, job_settings={"max_failed_rows": 0}).max_failed_rows == 0
    assert load(env(FIRST_ID="0", LAST_ID="0")).first_id == 0

    (tmp_path / "shardworker.toml").write_text("parallelism = false\n")
    (only,) = problems({}, folder=tmp_path)
    assert "parallelism in shardworker.toml is False" in only


def test_what_the_decorator_leaves_out_is_none_and_means_nothing() -> None:
    assert load({}, job_settings={"batch_size": None}).batch_size == 1000


def test_only_settings_of_a_job_may_stand_in_its_decorator() -> None:
    first, second = problems({}, job_settings={"lease": "30s", "batchsize": 5})
    assert "lease" in first
    assert "batch_size" in first
    assert "batchsize" in second


def test_nothing_but_the_given_mapping_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"BATCH_SIZE": "5", "SHARDWORKER_BATCH_SIZE": "5", "RUN": "other"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / ".env").write_text("BATCH_SIZE=5\nSHARDWORKER_BATCH_SIZE=5\n")
    monkeypatch.chdir(tmp_path)
    assert (load({}).batch_size, load({}).run, Settings().batch_size) == (1000, "main", 1000)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load({}).batch_size = 5


# ------------------------------------------------------------------------------------------------ Unknown names


def test_case_28_variables_that_kubernetes_injects_have_no_influence() -> None:
    """A service called redis, mysql, shardworker or shardworker-redis puts these into every pod."""
    injected = {
        "REDIS_PORT": "tcp://10.0.0.7:6379",
        "REDIS_SERVICE_HOST": "10.0.0.7",
        "REDIS_SERVICE_PORT": "6379",
        "MYSQL_PORT": "tcp://10.0.0.8:3306",
        "DATABASE_URL": "mysql://somebody.else/db",
        "BATCH_SIZE": "7",
    }
    for service in ("SHARDWORKER", "SHARDWORKER_REDIS", "SHARDWORKER_EXPORTER_2"):
        injected |= {
            f"{service}_SERVICE_HOST": "10.0.0.9",
            f"{service}_SERVICE_PORT": "80",
            f"{service}_SERVICE_PORT_HTTP": "80",
            f"{service}_SERVICE_PORT_FILE": "80",
            f"{service}_PORT": "tcp://10.0.0.9:80",
            f"{service}_PORT_9464_TCP": "tcp://10.0.0.9:9464",
            f"{service}_PORT_9464_TCP_ADDR": "10.0.0.9",
            f"{service}_PORT_9464_TCP_PORT": "9464",
            f"{service}_PORT_9464_TCP_PROTO": "tcp",
            f"{service}_PORT_53_UDP": "udp://10.0.0.9:53",
            f"{service}_PORT_53_UDP_PROTO": "udp",
        }
    settings = load(injected | env(**SERVER, BATCH_SIZE="100"))
    assert settings == load(env(**SERVER, BATCH_SIZE="100"))


def test_a_port_that_kubernetes_did_not_write_is_taken_for_a_wrong_setting() -> None:
    (only,) = problems(env(REDIS_PORT="6379"))
    assert "SHARDWORKER_REDIS_PORT" in only


def test_variables_of_the_test_script_are_left_alone() -> None:
    assert load(env(TEST_REQUIRE="mysql,redis")) == load({})


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SHARDWORKER_BATCHSIZE", "SHARDWORKER_BATCH_SIZE"),
        ("SHARDWORKER_BATCH_SZIE", "SHARDWORKER_BATCH_SIZE"),
        ("SHARDWORKER_PARALELLISM", "SHARDWORKER_PARALLELISM"),
        ("SHARDWORKER_REDIS_URI", "SHARDWORKER_REDIS_URL"),
        ("SHARDWORKER_DATABASE_PASWORD_FILE", "SHARDWORKER_DATABASE_PASSWORD_FILE"),
        ("shardworker_batch_size", "SHARDWORKER_BATCH_SIZE"),
    ],
)
def test_case_28_a_misspelt_variable_is_refused_with_the_name_that_was_meant(variable: str, meant: str) -> None:
    (only,) = problems({variable: "s3cret"})
    assert only.startswith(f"{variable} is no setting; {meant} was")
    assert "s3cret" not in only


@pytest.mark.parametrize("name", ["SPLIT", "FOLLOW", "LISTEN", "PROCESSES", "BATCH_TIME", "PART_TIMEOUT"])
def test_a_setting_that_does_nothing_yet_is_unknown(name: str) -> None:
    (only,) = problems(env(**{name: "1"}))
    assert f"SHARDWORKER_{name} is no setting" in only


def test_unknown_options_and_keys_are_refused_with_a_suggestion_in_their_own_spelling(tmp_path: Path) -> None:
    (tmp_path / "shardworker.toml").write_text('paralelism = 4\n[table]\nname = "x"\n')
    in_file, table, option = problems({}, folder=tmp_path, options={"batchsize": "5"})
    assert in_file == "paralelism in shardworker.toml is no setting; parallelism in shardworker.toml was probably meant"
    assert "table in shardworker.toml is no setting" in table
    assert option == "--batchsize is no setting; --batch-size was probably meant"


def test_one_setting_under_two_spellings_in_one_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shardworker.toml").write_text("batch_size = 5\nbatch-size = 6\n")
    (only,) = problems({}, folder=tmp_path)
    assert "batch_size and batch-size" in only


@pytest.mark.parametrize("content", [b"batch_size = = 5", b"run = '\xff'"])
def test_a_file_of_settings_that_cannot_be_read_is_the_only_problem(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "shardworker.toml").write_bytes(content)
    (only,) = problems(env(DATABASE_URL=SERVER["DATABASE_URL"]), folder=tmp_path)
    assert "shardworker.toml cannot be read" in only


# ------------------------------------------------------------------------------------------------------- Values


@pytest.mark.parametrize(
    "value", ["1e3", "-5", "0", "", "  ", "1.5", "ten", "1__0", "_1", "0x10", "٣", "auto", "9" * 5000]
)
def test_case_28_a_bad_number_is_refused_with_name_value_and_what_is_allowed(value: str) -> None:
    (only,) = problems(env(BATCH_SIZE=value))
    assert only.startswith("SHARDWORKER_BATCH_SIZE is ")
    assert "a whole number, 1 or more" in only
    assert (repr(value)[:100] in only) if value.strip() else "is empty; unset it or give" in only


@pytest.mark.parametrize(("value", "number"), [(" 100 ", 100), ("1_000", 1000), ("+5", 5), ("1\n", 1)])
def test_case_28_odd_spellings_of_a_number_are_the_number(value: str, number: int) -> None:
    assert load(env(BATCH_SIZE=value)).batch_size == number


@pytest.mark.parametrize("name", [doc.name for doc in describe()])
@pytest.mark.parametrize("place", ["environment", "option", "file", "toml"])
def test_an_empty_text_is_refused_for_every_setting(tmp_path: Path, name: str, place: str) -> None:
    """A template that filled in nothing must not turn into 0, nor into the default that somebody meant to change."""
    empty = tmp_path / "empty"
    empty.write_text("\n")
    if place == "toml":
        (tmp_path / "shardworker.toml").write_text(f'{name.lower()} = ""\n')
    environ = {"environment": env(**{name: ""}), "file": env(**{f"{name}_FILE": str(empty)})}.get(place, {})
    options = {name.lower().replace("_", "-"): ""} if place == "option" else {}
    (only,) = problems(environ, options=options, folder=tmp_path)
    assert "is empty; unset it or give " in only


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1500ms", 1.5),
        ("30s", 30),
        ("5m", 300),
        ("1h", 3600),
        ("7d", 604_800),
        ("45", 45),
        ("30S", 30),
        (" 2 M ", 120),
        ("1.5h", 5400),
    ],
)
def test_times_have_a_unit_or_are_seconds(value: str, seconds: float) -> None:
    assert load(env(LEASE=value)).lease_s == pytest.approx(seconds)


@pytest.mark.parametrize("name", ["LEASE", "GRACE", "RETRY_FOR", "KEEP_RUN"])
@pytest.mark.parametrize("value", ["-1s", "1w", "1h30m", "1e3", "inf", "nan", "s", "99999999d", "9" * 400])
def test_what_is_no_usable_time_is_refused(name: str, value: str) -> None:
    (only,) = problems(env(**{name: value}))
    assert f"SHARDWORKER_{name} is '" in only
    assert "500ms, 30s, 5m, 1h, 7d" in only


@pytest.mark.parametrize("value", [float("inf"), float("nan"), True, [1], -1])
def test_a_value_of_another_type_is_refused_and_not_converted(value: object) -> None:
    with pytest.raises(ValidationError):
        Settings(lease_s=value)  # type: ignore[arg-type]


def test_no_time_may_be_zero_but_grace() -> None:
    assert load(env(GRACE="0")).grace_s == 0
    for name in ("LEASE", "RETRY_FOR", "KEEP_RUN"):
        assert len(problems(env(**{name: "0"}))) == 1
    assert load(env(RETRY_FOR="500ms")).retry_for_s == 0.5


def test_case_26_a_lease_too_short_to_be_renewed_is_refused() -> None:
    """The renewal interval is no setting: it is always a third of LEASE."""
    (only,) = problems(env(LEASE="999ms"))
    assert "1s or more" in only
    assert load(env(LEASE="1s")).lease_s == 1.0


def test_ids_may_have_any_size_and_sign() -> None:
    settings = load(env(FIRST_ID="-9223372036854775809", LAST_ID="18446744073709551616"))
    assert (settings.first_id, settings.last_id) == (-(2**63) - 1, 2**64)


def test_sizes_may_be_auto() -> None:
    settings = load(env(SLOT_SIZE="AUTO", PART_SIZE="50"))
    assert (settings.slot_size, settings.part_size) == (None, 50)
    assert "auto" in problems(env(SLOT_SIZE="0"))[0]


@pytest.mark.parametrize("name", ["RUN", "REDIS_PREFIX"])
@pytest.mark.parametrize("value", ["a/b", "a{b", "a}b", "a b", "ä", "x" * 101, "a\nb", "*"])
def test_names_that_could_end_a_redis_key_are_refused(name: str, value: str) -> None:
    (only,) = problems(env(**{name: value}))
    assert "letters, digits" in only


def test_only_the_prefix_may_have_a_colon() -> None:
    assert load(env(REDIS_PREFIX="team:jobs")).redis_prefix == "team:jobs"
    assert len(problems(env(RUN="a:b"))) == 1
    assert is_name("clean-2024.1_x")
    assert not is_name("")
    assert not is_name("a:b")
    assert not is_name("a\n")


@pytest.mark.parametrize("value", ["jobs:clean", "my.jobs.users:clean", "clean", "clean-up"])
def test_a_job_is_a_path_or_a_name(value: str) -> None:
    assert load(env(JOB=value)).job == value


@pytest.mark.parametrize("value", ["jobs:", ":clean", "a:b:c", "my-jobs:clean", "jobs/clean", "jobs.py clean"])
def test_what_is_no_job_is_refused(value: str) -> None:
    (only,) = problems(env(JOB=value))
    assert "package.module:name" in only


def test_words_are_read_in_any_case() -> None:
    settings = load(env(LOG_LEVEL="debug", LOG_FORMAT="JSON", CHECKPOINT="Database"))
    assert (settings.log_level, settings.log_format, settings.checkpoint) == ("DEBUG", "json", "database")
    assert "redis or database" in problems(env(CHECKPOINT="both"))[0]
    assert "TRACE, DEBUG" in problems(env(LOG_LEVEL="verbose"))[0]


def test_case_34_all_problems_come_at_once_and_each_with_the_spelling_of_its_source(folder: Path) -> None:
    """A person corrects a manifest once, not once for each problem; exit 78 stops the Job."""
    (folder / "shardworker.toml").write_text("slot-size = -1\n")
    found = problems(
        env(LEASE="soon", RETRY_FRO="5m", FIRST_ID="9", LAST_ID="3", **SERVER | {"REDIS_URL": "http://x"}),
        options={"batch-size": "many"},
        job_settings={"attempts": 0},
        folder=folder,
    )
    assert [text.split(" is ")[0] for text in found] == [
        "SHARDWORKER_RETRY_FRO",
        "SHARDWORKER_REDIS_URL",
        "slot-size in shardworker.toml",
        "--batch-size",
        "SHARDWORKER_LEASE",
        "attempts in the job's decorator",
        "SHARDWORKER_FIRST_ID",
    ]


# ------------------------------------------------------------------------------------------------------- Rules


def test_bounds_the_wrong_way_round_are_refused_with_both_names() -> None:
    (only,) = problems(env(FIRST_ID="10"), options={"last-id": "9"})
    assert only == "SHARDWORKER_FIRST_ID is 10, above --last-id, which is 9: no id lies between them"
    assert load(env(FIRST_ID="9", LAST_ID="9")).last_id == 9


def test_one_database_connection_is_too_few() -> None:
    (only,) = problems(env(DB_CONNECTIONS="1"))
    assert "2 or more (one connection reads the next batch while another writes)" in only


@pytest.mark.parametrize("url", ["mysql://db/x", "mysql+pymysql://db/x", "mariadb://db/x", "postgres://db/x"])
def test_a_real_database_without_redis_is_refused(url: str) -> None:
    """The local server is no fallback: each of N pods would start its own and do the whole table."""
    (only,) = problems(env(DATABASE_URL=url))
    assert "SHARDWORKER_DATABASE_URL" in only
    assert "SHARDWORKER_REDIS_URL" in only
    assert "exit 0" in only


def test_passwords_without_their_server_are_refused() -> None:
    """A forgotten URL would otherwise mean the local files, and exit 0 for an empty table."""
    database, redis = problems(env(DATABASE_PASSWORD="abcdef", REDIS_PASSWORD="abcdef"))
    assert "SHARDWORKER_DATABASE_PASSWORD" in database
    assert "SQLite" in database
    assert "SHARDWORKER_REDIS_PASSWORD" in redis


def test_a_password_in_the_url_and_in_the_setting_is_refused() -> None:
    database, redis = problems(
        env(
            DATABASE_URL="mysql://app:hunter2@db/shop",
            DATABASE_PASSWORD="hunter3",
            REDIS_URL="redis://:hunter2@cache",
            REDIS_PASSWORD="hunter3",
        )
    )
    assert "SHARDWORKER_DATABASE_URL has a password, and SHARDWORKER_DATABASE_PASSWORD is given too" in database
    assert "SHARDWORKER_REDIS_URL has a password, and SHARDWORKER_REDIS_PASSWORD is given too" in redis
    assert "hunter" not in database + redis


# ----------------------------------------------------------------------------------------- Passwords and URLs


@pytest.mark.parametrize(
    "settings",
    [
        {"DATABASE_URL": f"mysql://app:{ENCODED}@db:3306/shop", "REDIS_URL": f"redis://app:{ENCODED}@cache:6379/0"},
        {**SERVER, "DATABASE_PASSWORD": PASSWORD, "REDIS_PASSWORD": PASSWORD},
        {**SERVER, "REDIS_URL": f"redis+sentinel://h1:26379,h2:26379/main?password={ENCODED}"},
    ],
)
def test_case_27_a_password_is_known_as_it_is_and_shown_nowhere(settings: dict[str, str]) -> None:
    loaded = load(env(**settings))
    assert loaded.passwords() == [PASSWORD]
    shown = [repr(loaded), str(loaded), loaded.model_dump_json(), str(loaded.shown()), f"{loaded.database_url}"]
    for text in shown:
        assert PASSWORD not in text
        assert ENCODED not in text
    assert "mysql://app" in str(loaded.shown())


def test_case_27_a_url_keeps_what_is_no_password_when_shown() -> None:
    settings = load(
        env(
            DATABASE_URL="mysql://app:abc@db:3306/shop?charset=utf8mb4&ssl_key_password=xyz",
            **{"REDIS_URL": "unix://:abc@/run/redis.sock?db=1"},
        )
    )
    assert str(settings.database_url) == "mysql://app:***@db:3306/shop?charset=utf8mb4&ssl_key_password=***"
    assert str(settings.redis_url) == "unix://:***@/run/redis.sock?db=1"


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://app:{PASSWORD}@db/shop",
        "mysql://app:top@secret@db/shop",
        "mysql://app:top/secret@db/shop",
        "mysql://app:1/secret@db/shop",
        "mysql://app:top#secret@db/shop",
        "mysql://app:1?secret@db/shop",
        "mysql://app:secret:x@db:port/shop",
        "topsecret",
        "mysql:/app:secret@db/shop",
        "oracle://app:secret@db/shop",
        "mysql://[::1:secret/shop",
        "mysql://secret db/shop",
        "MySQL://app:secret@db/shop",
    ],
)
@pytest.mark.parametrize("name", ["DATABASE_URL", "REDIS_URL"])
def test_case_27_a_url_that_cannot_be_meant_is_refused_without_showing_it(name: str, url: str) -> None:
    """A `@` or `/` that is not encoded makes a part of the password the host's name, which connection errors print."""
    url = url.replace("mysql:", "redis:") if name == "REDIS_URL" else url
    (only,) = problems(env(**SERVER | {name: url}))
    assert f"SHARDWORKER_{name} is refused" in only
    for part in ("secret", "p@ss", "w#rd"):
        assert part not in only


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:////tmp/a@b:c#d.db",
        "mysql+pymysql://root@[::1]:3306/app-data",
        "mysql://root@/x?unix_socket=/run/mysqld.sock",
        "postgresql+psycopg://u@h/db?options=-c%20x&user=a@b",
        "mariadb+pymysql://u@h",
    ],
)
def test_urls_of_the_supported_databases_are_taken_as_they_are(url: str) -> None:
    settings = load(env(DATABASE_URL=url, REDIS_URL="rediss://cache"))
    assert settings.database_url.get_secret_value() == url


@pytest.mark.parametrize(
    "url",
    ["redis://h", "rediss://u@h:1/2", "redis+sentinel://h:1,h2:2/m", "redis+cluster://[::1]:1", "unix:///run/r.sock"],
)
def test_redis_urls_of_every_kind_are_taken(url: str) -> None:
    settings = load(env(REDIS_URL=f" {url}\n"))
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == url


# ------------------------------------------------------------------------------------------- For other readers


def test_the_identity_of_a_run_has_values_as_written_whatever_their_spelling_and_source(tmp_path: Path) -> None:
    assert load({}).as_written() == {
        "FIRST_ID": "MIN",
        "LAST_ID": "MAX",
        "SLOT_SIZE": "auto",
        "CHECKPOINT": "redis",
    }
    (tmp_path / "shardworker.toml").write_text("slot_size = 1000\n")
    assert (
        load(env(FIRST_ID=" +1_0 "), folder=tmp_path).as_written()
        == load(env(SLOT_SIZE="1_000"), options={"first-id": "10"}).as_written()
        == {"FIRST_ID": "10", "LAST_ID": "MAX", "SLOT_SIZE": "1000", "CHECKPOINT": "redis"}
    )


def test_every_setting_is_shown_with_its_source() -> None:
    shown = {line.name: (line.value, line.source) for line in load(env(**SERVER, DATABASE_PASSWORD="abc")).shown()}
    assert list(shown) == [doc.name for doc in describe()]
    assert shown["DATABASE_PASSWORD"] == ("***", "environment")
    assert shown["LEASE"] == ("30s", "default")
    assert shown["KEEP_RUN"] == ("30d", "default")
    assert shown["SLOT_SIZE"] == ("auto", "default")


@pytest.mark.parametrize("text", ["500ms", "1500ms", "30s", "5m", "90m", "1h", "7d", "0s"])
def test_a_time_is_shown_as_it_would_be_written(text: str) -> None:
    assert duration(load(env(GRACE=text)).grace_s) == text


def test_no_name_of_a_setting_looks_like_a_variable_of_kubernetes() -> None:
    for doc in describe():
        assert not re.search(r"(^|_)(SERVICE_HOST|SERVICE_PORT|PORT)(_|$)", doc.name)
        assert not doc.name.endswith("_FILE")


def test_the_documentation_has_every_setting_with_its_default() -> None:
    """To renew it: `shardworker config --markdown`, between the two markers."""
    text = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")
    table = text.partition("<!-- settings -->\n")[2].partition("<!-- /settings -->")[0]
    assert table.strip() == markdown().strip()
    assert all(f"| {doc.name} | {doc.default} |" in table for doc in describe())


def test_importing_the_settings_loads_no_driver_and_no_logging_library() -> None:
    """`--help` and a shell's completion wait for it."""
    heavy = ("sqlalchemy", "redis", "loguru", "rich", "pymysql", "tenacity")
    script = f"import sys, shardworker.config; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.strip() == "[]"
