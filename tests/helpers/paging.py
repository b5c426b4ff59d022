"""A page for tests: its folder, a client that has been let in, and a form that is filled in well."""

import re

import numpy as np
from starlette.testclient import TestClient

from sfumato.page.app import application
from sfumato.page.opened import Folder
from sfumato.page.workshop import Workshop

HOST = "127.0.0.1:8000"
HOME = f"http://{HOST}"
FILE = "trial.csv"


def write_table(path, rows=900, seed=0):
    """Scores that patients gave drugs, each pair once, with a column of markup that nobody asked for."""
    rng = np.random.default_rng(seed)
    cells = dict.fromkeys(
        zip(rng.integers(0, 60, rows).tolist(), rng.integers(1, 21, rows).tolist(), strict=True)
    )
    lines = [f"p{p},{d},2024-01-{1 + (p + d) % 28:02},{rng.integers(1, 6)},<b>x</b>" for p, d in cells]
    path.write_text("\n".join(["patient,drug,day,score,note", *lines]) + "\n")
    return path


def fields(**changed):
    """A form for the table above, under everything about one patient."""
    known = {
        **{"file": FILE, "role-0": "mode", "role-1": "mode", "role-3": "value", "unit": "mode:0"},
        **{"loss": "squared", "low": "1", "high": "5", "size-0": "80", "size-1": "20"},
        **{"known-1": "range", "entries": "900", "duplicates": "mean"},
        **{"goal": "epsilon", "epsilon": "2", "delta": "1e-6"},
    }
    return known | {name.replace("_", "-"): value for name, value in changed.items()}


class Visitor:
    """Somebody at a page, whose posts bring what forms bring."""

    def __init__(self, folder, ledger=None, most_uploaded=2**20):
        opened = Folder(folder)
        opened.prepare()
        self.shop = Workshop(opened, ledger)
        app = application(self.shop, [HOST], most_uploaded)
        self.client = TestClient(
            app, base_url=HOME + self.shop.known.base, headers={"origin": HOME}, follow_redirects=False
        )

    def enter(self):
        answer = self.client.get("/enter", params={"token": self.shop.known.token})
        assert answer.status_code == 200
        return self

    def get(self, address, **more):
        return self.client.get(address, **more)

    def post(self, address, data, **more):
        return self.client.post(address, data={"csrf": self.shop.known.csrf, **data}, **more)

    def led(self, answer):
        """The page that a form leads to; an answer that leads nowhere is that page itself."""
        if answer.status_code != 303:
            return answer
        return self.get(answer.headers["location"].removeprefix(HOME + self.shop.known.base))

    def shown(self, address, data, **more):
        """What somebody sees who has sent a form."""
        return self.led(self.post(address, data, **more))

    def step(self, step, **changed):
        return self.shown("/fit", {**fields(**changed), "step": step})

    def nonce(self, **changed):
        """A permit to spend, as the last step shows it."""
        answer = self.step("budget", **changed)
        assert answer.status_code == 200, wrong_in(answer)
        return re.search(r'name="nonce" value="([^"]+)"', answer.text)[1]

    def start(self, nonce=None, **changed):
        nonce = self.nonce(**changed) if nonce is None else nonce
        answer = self.post("/start", {**fields(**changed), "nonce": nonce})
        return answer if "/job/" in answer.headers.get("location", "") else self.led(answer)

    def ended(self, answer):
        """The page of a fit once it has ended, and the fit."""
        assert answer.status_code == 303, wrong_in(answer)
        address = answer.headers["location"].removeprefix(HOME + self.shop.known.base)
        ordered = self.shop.ordered[address.rpartition("/")[2]]
        assert ordered.job.wait(120) != "running"
        return self.get(address), ordered


def wrong_in(answer):
    """What a page says is wrong."""
    return re.findall(r'class="wrong"[^>]*>([^<]*)<', answer.text)
