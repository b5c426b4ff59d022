"""Pages as a program reads them: what is well formed, what would be loaded, what can be read."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "input", "br"}
LOADING = {"src", "href", "action", "formaction", "poster", "data", "xlink:href", "srcset", "background"}


class Page(HTMLParser):
    """Elements of a page; whatever is not well formed is an error while it is read."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.words, self.ids = [], [], [], []
        self.raw = {"style": [], "script": []}
        self.data = None
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, name, attributes):
        found = dict(attributes)
        assert len(found) == len(attributes), f"an attribute of {name} is given twice"
        self.elements.append((name, found))
        if "id" in found:
            self.ids.append(found["id"])
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside == "script" and self.elements[-1][1].get("type") == "application/json":
            self.data = json.loads(data)
        elif inside in self.raw:
            self.raw[inside].append(data)
        elif data.strip():
            self.words.append(data.strip())

    @property
    def text(self):
        return " ".join(self.words)

    @property
    def policy(self):
        return next(
            a["content"] for name, a in self.elements if a.get("http-equiv") == "Content-Security-Policy"
        )

    def of(self, name):
        return [found for each, found in self.elements if each == name]

    def check(self):
        """That it loads nothing, runs nothing but its own script, and can be read without seeing it."""
        assert len(set(self.ids)) == len(self.ids)
        for name, found in self.elements:
            for key, value in found.items():
                assert not key.startswith("on"), (name, key)
                assert key != "style", name
                if key in LOADING:
                    assert value.startswith("#"), (name, key, value)
                    assert value[1:] in self.ids
            assert name not in {"img", "iframe", "link", "object", "embed", "base", "image", "use"}
        for text in self.raw["style"]:
            assert "url(" not in text
            assert "@import" not in text
        for kind in ("style", "script"):
            for text in self.raw[kind]:
                digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
                assert f"{kind}-src 'sha256-{digest}'" in self.policy
        assert "default-src 'none'" in self.policy
        assert "unsafe" not in self.policy
        self._check_reading()

    def _check_reading(self):
        assert self.of("html")[0]["lang"] == "en"
        levels = [int(name[1]) for name, _ in self.elements if re.fullmatch("h[1-6]", name)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(later <= before + 1 for before, later in pairwise(levels))
        for picture in self.of("svg"):
            assert picture.get("aria-label") or picture.get("aria-hidden") == "true"
        known = {found["for"] for found in self.of("label")}
        assert all(found["id"] in known for name in ("input", "select") for found in self.of(name))
