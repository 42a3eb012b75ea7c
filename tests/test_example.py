"""The example project: its validation, its page and command, and the demo in all its variants."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from django.conf import settings
from django.db import connection

from example_project.airports import staging, validation
from example_project.demo_browser import Browser
from example_project.demo_processes import MANAGE, DemoError, Processes
from example_project.redis_server import RedisServer

ROOT = MANAGE.parent.parent
GOOD = {
    "icao": "EDDB",
    "iata": "BER",
    "name": "Berlin Brandenburg",
    "city": "Berlin",
    "country": "DE",
    "lat": "52.36",
    "lon": "13.5",
    "elevation": "157.0",
    "tz": "Europe/Berlin",
}
on_sqlite = pytest.mark.vendors("sqlite")


# The validation


@pytest.mark.parametrize("changes", [{}, {"iata": ""}, {"icao": "_BER"}, {"lat": "-90", "lon": "180"}])
def test_a_good_row_has_no_problems(changes):
    assert validation.problems([{**GOOD, **changes}]) == []


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("icao", "eddb", "ICAO code 'eddb' is malformed"),
        ("icao", "", "ICAO code '' is malformed"),
        ("iata", "BERL", "IATA code 'BERL' is malformed"),
        ("country", "Germany", "country code 'Germany' is malformed"),
        ("lat", "90.1", "latitude '90.1' is not between -90 and 90"),
        ("lat", "nan", "latitude 'nan' is not between -90 and 90"),
        ("lon", "-181", "longitude '-181' is not between -180 and 180"),
        ("lon", "", "longitude '' is not between -180 and 180"),
        ("tz", "Mars/Olympus_Mons", "time zone 'Mars/Olympus_Mons' is unknown"),
        ("tz", "Europe", "time zone 'Europe' is unknown"),
        ("tz", "", "time zone '' is unknown"),
        ("tz", "../etc/passwd", "time zone '../etc/passwd' is unknown"),
    ],
)
def test_a_wrong_value_is_named_with_its_airport(column, value, problem):
    assert validation.problems([{**GOOD, column: value}]) == [f"Berlin Brandenburg: {problem}"]


def test_codes_that_are_given_twice_are_named_and_missing_ones_are_not():
    nameless = {**GOOD, "icao": "AAAA", "iata": ""}
    rows = [GOOD, {**GOOD, "icao": "EDDT"}, nameless, nameless]
    assert validation.repeated_codes(rows) == [
        "IATA code 'BER' is given 2 times",
        "ICAO code 'AAAA' is given 2 times",
    ]


def test_all_airports_of_the_package_are_valid_and_each_breakage_is_noticed():
    assert validation.problems(staging.airports()) == []
    assert validation.repeated_codes(staging.airports()) == []
    broken = list(staging.airports(broken=True))
    noticed = validation.problems(broken) + validation.repeated_codes(broken)
    assert len(noticed) == len(staging.BREAKAGES)


@pytest.fixture
def staging_dir(settings, tmp_path):
    settings.STAGING_DIR = tmp_path / "staging"


def test_rows_come_out_of_the_staging_as_they_went_in(staging_dir):
    rows = [{**GOOD, "name": f'Ünique "{number}",\n'} for number in range(staging.PART_SIZE + 1)]
    assert staging.stage(7, rows) == (staging.PART_SIZE + 1, 2)
    assert staging.read_part(7, 0) + staging.read_part(7, 1) == rows
    staging.remove(7)
    assert not staging.is_staged(7)
    with pytest.raises(FileNotFoundError, match="start a new one"):
        staging.read_part(7, 0)


# The page and the command


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The example project as a user has it: a database, Redis, a worker and the web server; yields its address."""
    folder = tmp_path_factory.mktemp("site")
    with (
        pytest.MonkeyPatch.context() as patch,
        RedisServer() as redis,
        Processes(folder / "log") as processes,
    ):
        patch.setenv("DEMO_VAR", str(folder))
        patch.setenv("DEMO_DATABASE", "sqlite")
        patch.setenv("DEMO_REDIS_SOCKET", str(redis.socket))
        patch.setenv("DJANGO_SETTINGS_MODULE", "example_project.settings")
        manage("migrate", "--verbosity", "0")
        manage("shell", "--command", ADD_USERS)
        processes.start_manage("worker", "rqworker", "default")
        yield processes.start_web(0, time.monotonic() + 60)


ADD_USERS = """
from django.contrib.auth.models import User
User.objects.create_superuser("boss", password="boss")
User.objects.create_user("clerk", password="clerk", is_staff=True)
"""


def manage(*arguments, check=True):
    command = [sys.executable, str(MANAGE), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not check or result.returncode == 0, result.stdout + result.stderr
    return result


def logged_in(site, name):
    browser = Browser(site)
    browser.submit("/admin/login/", username=name, password=name)
    return browser


@on_sqlite
def test_the_button_dispatches_the_import_and_leads_to_its_batch(site):
    browser = logged_in(site, "boss")
    page = browser.submit("/airports/import/", variant="plain")
    assert re.fullmatch(rf"{site}/admin/django_job_batches/batch/[0-9a-f-]{{36}}/change/", browser.url)
    assert re.search(r"Airports \d+ \(plain\) was dispatched", page)


@on_sqlite
def test_an_unknown_variant_is_refused_by_the_form(site):
    browser = logged_in(site, "boss")
    assert "Select a valid choice" in browser.submit("/airports/import/", variant="sideways")


@on_sqlite
def test_who_is_not_logged_in_is_led_to_the_login(site):
    browser = Browser(site)
    browser.get("/airports/import/")
    assert browser.url == f"{site}/admin/login/?next=/airports/import/"


@on_sqlite
def test_staff_without_the_permission_is_refused(site):
    with pytest.raises(DemoError, match="403"):
        logged_in(site, "clerk").get("/airports/import/")


@on_sqlite
def test_a_post_without_a_csrf_token_is_refused(site):
    with pytest.raises(OSError, match="403"):
        urlopen(f"{site}/airports/import/", b"variant=plain", timeout=60)  # noqa: S310


@on_sqlite
def test_the_web_server_takes_another_port_when_the_wanted_one_is_taken(site, tmp_path):
    taken = int(site.rpartition(":")[2])
    with Processes(tmp_path) as processes:
        address = processes.start_web(taken, time.monotonic() + 60)
        assert address != site
        assert "Log in" in Browser(address).get("/admin/login/")
        processes.check()


@on_sqlite
def test_the_list_of_airports_leads_to_the_button(site):
    assert 'href="/airports/import/"' in logged_in(site, "boss").get("/admin/airports/airport/")


@on_sqlite
def test_the_command_dispatches_and_waits(site):
    output = manage("import_airports", "--wait", "100").stdout
    assert re.search(r"Dispatched batch [0-9a-f-]{36}: Airports \d+ \(plain\)", output)
    assert "It succeeded within" in output


@on_sqlite
def test_the_command_fails_with_the_batch(site):
    result = manage("import_airports", "--variant", "broken", "--wait", "100", check=False)
    assert result.returncode == 1
    assert "The batch ended as failed" in result.stderr


# The demo


def start_demo(folder, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "example_project.demo", "--port", "0", *arguments],
        cwd=ROOT,
        env={**os.environ, "DEMO_DATABASE": "sqlite", "DEMO_VAR": str(folder), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def demo(folder, *arguments, **environment):
    """Run the demo to its end; return its exit code and what it printed."""
    process = start_demo(folder, *arguments, **environment)
    output, _ = process.communicate(timeout=200)
    return process.returncode, output


def processes_of(folder):
    """The ids of all processes that were started by a demo with this folder."""
    mark = f"DEMO_VAR={folder}".encode()
    pids = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environment.read_bytes().split(b"\0"):
                pids.append(int(environment.parent.name))
        except OSError:
            pass  # somebody else's, or gone
    return pids


@on_sqlite
def test_the_demo_imports_all_airports_twice_and_leaves_only_the_database(tmp_path):
    for _ in range(2):
        code, output = demo(tmp_path)
        assert code == 0, output
        assert "✓ airports that this import wrote, as were staged: 2" in output
        assert "on_finish clean_up: succeeded" in output
        assert "As expected." in output
        assert processes_of(tmp_path) == []
        left = {path.name.removesuffix("-wal").removesuffix("-shm") for path in tmp_path.rglob("*")}
        assert left == {"db.sqlite3"}


@on_sqlite
@pytest.mark.parametrize(
    ("variant", "evidence"),
    [
        ("--broken", "✓ import jobs that ever started: 0"),
        ("--side-by-side", "✓ import jobs that the failing validation cancelled"),
        ("--deadlock", "✓ effects of the two jobs in each of two rows: [2, 2]"),
        ("--flaky", "✓ attempts of the flaky validation: 3"),
    ],
)
def test_each_variant_of_the_demo_ends_as_it_should(tmp_path, variant, evidence):
    code, output = demo(tmp_path, variant)
    assert code == 0, output
    assert evidence in output
    assert "✗" not in output


@pytest.fixture
def demo_database(django_db_blocker):
    """The name of a database of its own on the server that is tested; dropped afterwards."""
    name = f"{settings.DATABASE_NAME}_demo"
    yield name
    with django_db_blocker.unblock(), connection._nodb_cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")


@pytest.mark.vendors("postgresql", "mariadb")
def test_a_deadlock_is_survived_in_place(tmp_path, demo_database):
    database = {"DEMO_DATABASE": settings.TEST_DATABASE, "DEMO_DATABASE_NAME": demo_database}
    code, output = demo(tmp_path, "--deadlock", **database)
    assert code == 0, output
    assert "✓ of these, in the two jobs that lock: 1" in output
    assert "✓ effects of the two jobs in each of two rows: [2, 2]" in output


@on_sqlite
def test_an_outcome_that_was_not_expected_gives_an_exit_code(tmp_path):
    code, output = demo(tmp_path, "--deadlock", "--workers", "1")
    assert code == 1
    assert "two workers are needed" in output
    assert "Not as expected." in output
    assert (tmp_path / "log" / "worker-1.log").exists()
    assert processes_of(tmp_path) == []


@on_sqlite
def test_the_time_limit_ends_everything(tmp_path):
    code, output = demo(tmp_path, "--time-limit", "0.1")
    assert code == 1
    assert "Waited too long for" in output
    assert processes_of(tmp_path) == []


@on_sqlite
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_everything_and_the_next_run_succeeds(tmp_path, signal_number):
    process = start_demo(tmp_path)
    staged = tmp_path / "staging"
    while not staged.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal_number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal_number, output
    assert processes_of(tmp_path) == []
    assert demo(tmp_path)[0] == 0
