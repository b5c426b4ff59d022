"""Who is let in, from where, and how much may be sent."""

import json
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest
from paging import FILE, HOME, HOST, Visitor, fields, write_table

from sfumato.errors import DataError
from sfumato.page import serving
from sfumato.page.guard import Confirmations
from sfumato.page.opened import Folder


@pytest.fixture
def visitor(tmp_path):
    write_table(tmp_path / FILE)
    return Visitor(tmp_path)


def test_nothing_is_answered_without_the_token(visitor):
    for address in ("/", f"/fit?file={FILE}", "/static/page.css", "/job/x"):
        assert visitor.get(address).status_code == 403
    for token in ("", "wrong", "é"):
        assert visitor.get("/enter", params={"token": token}).status_code == 403
    assert visitor.post("/fit", fields()).status_code == 403


def test_the_token_is_traded_for_a_cookie_that_scripts_and_others_do_not_get(visitor):
    answer = visitor.get("/enter", params={"token": visitor.shop.known.token})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert f"Path={visitor.shop.known.base}" in cookie  # or browsers would send it to every port here
    assert visitor.shop.known.token not in cookie
    assert visitor.get("/").status_code == 200
    visitor.client.cookies.clear()
    visitor.client.cookies.set(visitor.shop.known.cookie, "wrong")
    assert visitor.get("/").status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:8000.evil.example", ""])
def test_other_hosts_are_not_answered(visitor, host):
    assert visitor.enter().get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", f"https://{HOST}", "http://127.0.0.1"]
)
def test_other_pages_can_ask_for_nothing(visitor, origin):
    visitor.enter()
    assert visitor.get("/", headers={"origin": origin}).status_code == 403
    assert visitor.post("/fit", fields(), headers={"origin": origin}).status_code == 403


def test_a_post_has_to_say_where_it_is_from(visitor):
    visitor.enter()
    del visitor.client.headers["origin"]
    assert visitor.get("/").status_code == 200
    assert visitor.post("/fit", fields()).status_code == 403
    assert visitor.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_a_post_needs_the_secret_of_the_form(visitor):
    visitor.enter()
    for address in ("/open", "/fit", "/expect", "/preview", "/start"):
        answer = visitor.client.post(address, data={**fields(), "csrf": "wrong"})
        assert answer.status_code == 403, address
    assert visitor.client.post("/fit", data=fields()).status_code == 403
    assert not visitor.shop.ordered


def test_other_methods_are_refused(visitor):
    visitor.enter()
    assert visitor.client.put("/fit").status_code == 405
    assert visitor.client.delete("/job/x").status_code == 405


def test_answers_may_load_nothing_from_elsewhere_and_are_not_kept(visitor):
    for answer in (visitor.get("/"), visitor.enter().get("/"), visitor.get("/static/page.js")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
    page = visitor.get("/").text
    assert "http://" not in page.replace(HOME, "")
    assert "https://" not in page


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../secret.csv",
        "/etc/passwd",
        "sub/../../secret.csv",
        "..\\secret.csv",
        "out.csv",
        "sub",
        "no.csv",
        "",
        "\x00.csv",
        "x" * 5000,
        "away/secret.csv",
        "loop.csv",
    ],
)
def test_paths_stay_below_the_folder(tmp_path, name):
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    write_table(tmp_path / "secret.csv")
    (inside / "out.csv").symlink_to(tmp_path / "secret.csv")
    (inside / "away").symlink_to(tmp_path)
    (inside / "loop.csv").symlink_to(inside / "loop.csv")
    visitor = Visitor(inside).enter()
    answer = visitor.shown("/open", {"path": name})
    assert answer.status_code == 400
    assert "p1," not in answer.text
    assert visitor.shown("/fit", {**fields(), "file": name, "rows": "1"}).status_code == 400
    assert visitor.get("/fit", params={"file": name}).status_code == 400


def test_links_within_the_folder_are_followed(tmp_path):
    write_table(tmp_path / FILE)
    (tmp_path / "same.csv").symlink_to(tmp_path / FILE)
    assert Folder(tmp_path).find("same.csv") == tmp_path / FILE


def test_files_are_listed_without_hidden_ones_and_without_what_the_page_keeps(tmp_path):
    for name in ("a.csv", ".hidden.csv", "sub/b.parquet", "notes.txt", "sfumato-page/uploads/c.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    inside = tmp_path / "sub"
    (inside / "out.csv").symlink_to(tmp_path / "a.csv")
    assert Folder(inside).listed() == ["b.parquet"]  # a link that leads out would be refused
    (inside / "out.csv").unlink()
    assert Folder(tmp_path).listed() == ["a.csv", "sub/b.parquet"]


def test_what_the_page_keeps_is_for_its_owner_alone(tmp_path):
    folder = Folder(tmp_path)
    folder.prepare()
    assert folder.kept.stat().st_mode & 0o077 == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "sfumato-page").symlink_to(tmp_path)
    with pytest.raises(DataError, match="link"):
        Folder(other).prepare()


def upload(visitor, name, content):
    return visitor.post("/open", {"path": ""}, files={"upload": (name, content)})


def test_an_upload_is_kept_and_one_of_its_name_replaced(visitor, tmp_path):
    visitor.enter()
    table = (tmp_path / FILE).read_bytes()
    for content in (table, table + b"p1,99,2024-01-01,3,y\n"):
        answer = upload(visitor, "../../up.csv", content)
        assert answer.status_code == 303
        assert answer.headers["location"].endswith("file=sfumato-page%2Fuploads%2Fup.csv")
        assert (tmp_path / "sfumato-page/uploads/up.csv").read_bytes() == content
    assert [path.name for path in (tmp_path / "sfumato-page/uploads").iterdir()] == ["up.csv"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.exe", b"MZ"),
        ("x.csv", b""),
        ("x.csv", b"\xff\xfe\x00"),
        ("x.csv", b"a,b\n1,2\n"),
        ("...csv", b"a"),
        ("x.parquet", b"PAR1 no"),
        ("x.npz", b"PK"),
        ("x.csv", b"a,a,b\n1,2,3\n"),
        ("x.zip", b"PK\x03\x04"),
        ("x.xlsx", b"PK\x03\x04"),
        ("x.csv", b"a,b,c\n"),
        ("x.csv.gz", b"\x1f\x8b rest"),
        ("", b"a,b,c\n1,2,3"),
    ],
)
def test_what_is_no_table_is_refused_and_not_kept(visitor, tmp_path, name, content):
    answer = visitor.led(upload(visitor.enter(), name, content))
    assert answer.status_code == 400
    assert not list((tmp_path / "sfumato-page/uploads").iterdir())


def test_uploads_have_a_limit_whatever_their_length_says(visitor, tmp_path):
    visitor.enter()
    answer = upload(visitor, "x.csv", b"a,b,c\n" + b"1,2,3\n" * 200_000)
    assert answer.status_code == 413
    assert "open it by its path" in answer.text

    def unending():
        yield b'--x\r\nContent-Disposition: form-data; name="upload"; filename="x.csv"\r\n\r\n'
        for _ in range(300):
            yield b"1,2,3\n" * 1_000

    kind = {"content-type": "multipart/form-data; boundary=x"}
    assert visitor.client.post("/open", content=unending(), headers=kind).status_code == 413
    assert visitor.client.post("/open", content=b"", headers={"content-length": "-1"}).status_code == 413
    assert not list((tmp_path / "sfumato-page/uploads").iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 90000,
        "\x00",
        json.dumps({"sfumato_page": 2}),
        '{"sfumato_page": 1, "file": 3}',
        json.dumps({"sfumato_page": 1, "file": FILE, "columns": ["a"], "fields": {}}),
        json.dumps({"sfumato_page": 1, "file": "../x.csv", "columns": [], "fields": {}}),
        json.dumps({"sfumato_page": 1, "file": FILE, "columns": [], "fields": {"low": 1}}),
    ],
)
def test_settings_that_are_none_are_refused(visitor, text):
    answer = visitor.enter().shown("/open", {}, files={"settings": ("settings.json", text)})
    assert answer.status_code == 400


# -- permits --------------------------------------------------------------------------------------


def test_a_permit_is_for_one_fit_and_ends_all_others():
    permits = Confirmations()
    first, second = permits.ask("this"), permits.ask("this")
    assert not permits.use(first, "that")
    assert not permits.use("", "this")
    assert permits.use(first, "this")
    assert not permits.use(first, "this")
    assert not permits.use(second, "this")


def test_two_pages_on_one_machine_do_not_share_a_cookie(visitor, tmp_path):
    other = Visitor(tmp_path)
    assert other.shop.known.cookie != visitor.shop.known.cookie
    other.client.cookies = visitor.enter().client.cookies
    assert other.get("/").status_code == 403


def test_a_browser_is_led_by_a_file_that_only_its_owner_reads(tmp_path, monkeypatch):
    """Words of commands can be read by everybody on a machine."""
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: None)
    told = []
    serving.serve(tmp_path, None, port=0, browser=True, tell=told.append)
    token = told[0].split("token=")[1].split()[0]
    assert token not in opened[0]
    led = Path(url2pathname(urlparse(opened[0]).path))
    assert token in led.read_text()
    assert led.stat().st_mode & 0o777 == 0o600
