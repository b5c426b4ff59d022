"""The command line in this process, as somebody types it."""

from typer.testing import CliRunner

from sfumato import cli


def run(*words):
    return CliRunner().invoke(cli.app, [str(word) for word in words])
