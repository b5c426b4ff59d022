"""Ctrl-C while kernels compile: heard at once, by a real program."""

import os
import signal
import subprocess
import sys
import threading

from sfumato.cli.interrupt import WAITING, heard_at_once

READ = "import sys, sfumato as sf; sf.read(sys.argv[1], ['user', 'item'], 'rating')"
RUN = "from sfumato.cli import main; main()"


def test_ctrl_c_is_heard_while_kernels_compile(tmp_path):
    file = tmp_path / "ratings.csv"
    rows = [f"u{i % 7},i{i % 5},{1 + i % 5}" for i in range(35)]
    file.write_text("\n".join(["user,item,rating", *rows]))
    columns = ["--modes", "user", "item", "--value", "rating", "--rank", "2"]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    # Kernels of readers are there already. They compile in the main thread, which may act on a signal
    # before anybody could say that it has to wait; those of fits compile in others.
    subprocess.run([sys.executable, "-c", READ, file], env=environment, check=True)
    child = subprocess.Popen(
        [sys.executable, "-c", RUN, "complete", file, *columns, "--out", tmp_path / "model"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = ""
    with child:
        for line in child.stderr:
            said += line
            if line.startswith("compiling kernels"):
                child.send_signal(signal.SIGINT)
    assert child.returncode == 130
    # Two threads say them, in any order, and one may come between the other's text and its line's end.
    assert WAITING in said
    assert said.replace(WAITING, "").split("\n", 1)[1].strip() == "interrupted"
    assert not (tmp_path / "model").exists()


def test_handlers_and_listeners_of_the_program_stay_as_they_were():
    handler, threads = signal.getsignal(signal.SIGINT), threading.active_count()
    with heard_at_once():
        assert signal.getsignal(signal.SIGINT) is handler
        assert threading.active_count() == threads + 1
    assert threading.active_count() == threads
    assert signal.set_wakeup_fd(-1) == -1
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    with heard_at_once():
        pass
    assert signal.set_wakeup_fd(-1) == writing
    os.close(reading)
    os.close(writing)


def test_outside_the_main_thread_nothing_is_set_up():
    done = []

    def elsewhere():
        with heard_at_once():
            done.append(threading.active_count())

    before = threading.active_count()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert done == [before + 1]
