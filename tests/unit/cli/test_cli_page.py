"""``sfumato page``: what it refuses before it serves anything."""

import socket
import subprocess
import sys

from command_line import run


def test_a_missing_extra_is_told_with_how_to_get_it(tmp_path):
    code = "import sys; sys.modules['uvicorn'] = None; from sfumato.cli import main; main()"
    words = ["page", "--folder", str(tmp_path), "--no-browser"]
    result = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert 'pip install "sfumato[page]"' in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_that_is_taken_is_an_error(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run("page", "--folder", tmp_path, "--no-browser", "--port", taken.getsockname()[1])
    assert result.exit_code == 1
    assert "name another with --port" in result.output


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    result = run("page", "--folder", tmp_path / "no", "--no-browser")
    assert result.exit_code == 1
    assert "error: " in result.output
    (tmp_path / "file").write_text("x")
    result = run("page", "--folder", tmp_path / "file", "--no-browser")
    assert "is no folder: name one with --folder" in result.output


def test_help_needs_no_server():
    code = (
        "import sys; from typer.testing import CliRunner; from sfumato import cli; "
        "assert CliRunner().invoke(cli.app, ['page', '--help']).exit_code == 0; "
        "assert not {'starlette', 'uvicorn', 'jinja2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
