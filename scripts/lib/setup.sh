# shellcheck shell=bash
# For the scripts beside this folder: sets up .venv in the checkout, and servers for the tests. To be sourced by bash.
# Every word goes to standard error, so that what a script prints is its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

say() { printf '%s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# Rights ---------------------------------------------------------------------------------------------------------------
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
    command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
}

apt_install() {
    say "installing with apt: $*"
    as_root apt-get update -qq >/dev/null || say "apt-get update failed: trying with the package lists that are here"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Python ---------------------------------------------------------------------------------------------------------------
pythons() {    # those of 3.11 or newer
    local name
    for name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then printf '%s\n' "$name"; fi
    done
}

# Debian keeps ensurepip, without which venv makes no environment, in a package of its own: python3-venv.
make_venv() {
    local python
    for python in $(pythons); do
        if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            "$python" -m venv --clear .venv >&2
            return
        fi
    done
    for python in $(pythons); do
        if "$python" -m pip --version >/dev/null 2>&1 && "$python" -c 'import venv' 2>/dev/null; then
            say "$python came without python3-venv: its pip fills the environment"
            "$python" -m venv --clear --without-pip .venv >&2
            "$python" -m pip --python .venv/bin/python install --quiet --disable-pip-version-check pip >&2
            return
        fi
    done
    return 1
}

how_to_get_python() {
    if [ -z "$(pythons)" ]; then
        say "Python 3.11 or newer is needed. Set PYTHON to one, or install it (Debian 12, Ubuntu 24.04 or newer:" \
            "apt-get install python3 python3-venv)."
    else
        say "$(pythons | head -n 1) has neither venv (ensurepip) nor pip. On Debian and Ubuntu: apt-get install" \
            "python3-venv. Else set PYTHON to a complete Python 3.11 or newer."
    fi
}

# What .venv holds is written down in it: the checkout's place (the package is installed from there) and pyproject.toml.
wanted_state() { printf '%s %s' "$PWD" "$(cksum <pyproject.toml)"; }

has_installed() {
    [ "$(cat ".venv/installed-$1" 2>/dev/null)" = "$(wanted_state)" ] && .venv/bin/python -c '' 2>/dev/null
}

install_into_venv() {    # NAME PIP-ARGUMENT...
    local name=$1
    shift
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        if ! make_venv; then
            may_install || { how_to_get_python; exit 1; }
            say "no Python 3.11 or newer with venv or pip is here"
            apt_install python3 python3-venv
            make_venv || { how_to_get_python; exit 1; }
        fi
        say "made .venv with $(.venv/bin/python --version)"
    fi
    say "installing into .venv: $*"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" >&2
    wanted_state >".venv/installed-$name"
}

# Two scripts at once: the second waits, and finds everything in place.
with_lock() {
    if command -v flock >/dev/null; then
        exec 9<pyproject.toml
        flock 9
        "$@"
        exec 9<&-
    else
        "$@"
    fi
}

need_package() {
    if ! has_installed package && ! has_installed development; then install_into_venv package -e '.[local]'; fi
}

need_development() {
    if ! has_installed development; then
        install_into_venv pip 'pip>=25.1'    # the first that knows --group
        install_into_venv development -e '.[local,postgres]' --group dev
    fi
}

# Servers --------------------------------------------------------------------------------------------------------------
# Which of the Debian packages would help: servers that have no URL and no program here, where no Docker answers either.
missing_servers() {
    .venv/bin/python - <<'END'
import os
import docker
from tests.services import KINDS

packages = {"mariadb": "mariadb-server", "redis": "redis-server", "postgres": "postgresql"}
missing = [
    package
    for name, package in packages.items()
    if f"SHARDWORKER_TEST_{name.upper()}_URL" not in os.environ and KINDS[name].find_program() is None
]
try:
    docker.from_env().ping()
except docker.errors.DockerException:
    print(*missing)
END
}

need_servers() {
    local packages service
    packages=$(missing_servers)
    [ -n "$packages" ] || return 0
    if ! may_install; then
        say "no server program, no URL and no Docker for: $packages. Tests that need them are skipped." \
            "tests/services.py says how to name servers of your own."
        return 0
    fi
    # shellcheck disable=SC2086    # one word for each package
    apt_install $packages sysbench    # it makes the table of a million rows for a test
    # Debian starts what it installs. The tests start servers of their own, with ports and data of their own.
    for service in $packages; do
        service=${service%-server}
        [ "$service" != redis ] || service=redis-server
        if [ -d /run/systemd/system ]; then
            as_root systemctl disable --quiet --now "$service" >&2 || true
        else
            as_root service "$service" stop >&2 || true
        fi
        say "the service $service is stopped: the tests start their own"
    done
}
