"""The page itself: what is answered to each request."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import URL, FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from sfumato.data.tensor import TIME_BINS
from sfumato.errors import DataError, SettingError, SfumatoError
from sfumato.page import results, scripts
from sfumato.page.choices import DUPLICATES, KNOWN, LOSSES, STEPS
from sfumato.page.drafts import Draft
from sfumato.page.expected import account_of, expected, room_in
from sfumato.page.guard import ENTRANCE, MOST_POSTED, MOST_UPLOADED, OPENING, Guard, same
from sfumato.page.opened import look_at
from sfumato.page.phrases import in_page_words, sentence
from sfumato.page.wording import Settings, command_line
from sfumato.page.workshop import Asked, Ordered, Workshop
from sfumato.privacy.budgets import rounded_up

_HERE = Path(__file__).parent
_USUAL = {"epsilon": "1", "delta": "1e-6", "goal": "epsilon", "loss": "squared", "duplicates": "mean"}
_PLACES = (*STEPS, "confirm")
_CHUNK = 1 << 20
_GONE = "What was typed here is not kept any more. Open the file again."


def application(
    workshop: Workshop, hosts: Collection[str], most_uploaded: int = MOST_UPLOADED
) -> Starlette:
    """The server, which answers to these hosts alone."""
    page = _Page(workshop)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        workshop.close()

    guard = Middleware(Guard, known=workshop.known, hosts=hosts, most_uploaded=most_uploaded)
    handlers: Mapping[Any, Any] = {
        HTTPException: page.refused,
        SfumatoError: page.wrong,
        OSError: page.wrong,
    }
    return Starlette(
        routes=page.routes, middleware=[guard], exception_handlers=handlers, lifespan=lifespan
    )


class _Page:
    """Answers, made of templates and of what the workshop says."""

    def __init__(self, workshop: Workshop) -> None:
        self._shop = workshop
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            up=partial(rounded_up, digits=3), short=_short, sentence=sentence, plain=in_page_words
        )
        self._templates.globals.update(
            csrf=workshop.known.csrf,
            base=workshop.known.base,
            bins=TIME_BINS,
            losses=LOSSES,
            duplicates=DUPLICATES,
            ways=KNOWN,
        )

    @property
    def routes(self) -> list[Route | Mount]:
        job = "/job/{id}"
        return [
            Route(ENTRANCE, self.enter),
            Route("/", self.home),
            Route(OPENING, self.open, methods=["POST"]),
            Route("/fit", self.fit),
            Route("/fit", self.step, methods=["POST"]),
            Route("/fit/{id}", self.steps),
            Route("/expect", self.expect, methods=["POST"]),
            Route("/preview", self.preview, methods=["POST"]),
            Route("/start", self.start, methods=["POST"]),
            Route(job, self.job),
            Route(f"{job}/part", self.job_part),
            Route(f"{job}/cancel", self.cancel, methods=["POST"]),
            Route(f"{job}/top", self.top, methods=["POST"]),
            Route(f"{job}/get/{{what}}", self.download),
            Mount("/static", StaticFiles(directory=_HERE / "static")),
        ]

    def _shown(
        self, template: str, status: int = 200, names: Collection[str] = (), **facts: Any
    ) -> HTMLResponse:
        """A page; ``names`` stay as they are written, also where a sentence begins with one."""
        text = self._templates.get_template(template).render(names=names, **facts)
        return HTMLResponse(text, status)

    # -- from a form to an address ----------------------------------------------------------------

    def _to_steps(self, request: Request, draft: Draft) -> Response:
        """Lead to the page of what was typed: whoever comes back to it sends nothing again."""
        return RedirectResponse(request.url_for("steps", id=self._shop.drafts.keep(draft)), 303)

    def _back_to(self, place: URL, draft: Draft) -> Response:
        """Lead back to a page that has an address, with what was typed there."""
        return RedirectResponse(place.include_query_params(draft=self._shop.drafts.keep(draft)), 303)

    def _typed(self, request: Request) -> Draft | None:
        """What was typed, as the address says; None where it is not kept any more."""
        return self._shop.drafts.find(request.query_params.get("draft", ""))

    # -- what goes wrong --------------------------------------------------------------------------

    async def refused(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = {404: "There is nothing here."}.get(error.status_code, str(error.detail))
        return self._shown("error.html", error.status_code, said=words)

    async def wrong(self, request: Request, error: Exception) -> Response:
        words = str(error)
        if isinstance(error, OSError) and error.strerror:
            words = f"{error.filename or 'a file'}: {error.strerror}"
        return self._shown("error.html", 400, [request.query_params.get("file", "")], said=words)

    # -- coming in, and opening a file ------------------------------------------------------------

    async def enter(self, request: Request) -> Response:
        """Trade the token for a cookie; not by a redirect, which from elsewhere sends no strict ones."""
        if not same(request.query_params.get("token"), self._shop.known.token):
            raise HTTPException(403, "This is not the token that sfumato page has printed.")
        answer = self._shown("enter.html")
        known = self._shop.known
        answer.set_cookie(known.cookie, known.session, httponly=True, samesite="strict", path=known.base)
        return answer

    async def home(self, request: Request) -> Response:
        return await run_in_threadpool(self._home, self._typed(request) or Draft({}))

    def _home(self, draft: Draft) -> Response:
        folder, errors, typed = self._shop.folder, draft.errors, draft.fields.get("path", "")
        facts = {"folder": folder.path, "kept": folder.kept, "files": folder.listed(), "typed": typed}
        limit, names = MOST_UPLOADED // 2**20, draft.fields.values()
        status = 400 if errors else 200
        return self._shown("open.html", status, names, errors=errors, limit=limit, **facts)

    async def open(self, request: Request) -> Response:
        async with request.form(max_files=2, max_fields=20, max_part_size=MOST_POSTED) as form:
            self._check_csrf(form)
            field, name = "path", str(form.get("path", ""))
            typed = {"path": name}
            try:
                upload, settings = form.get("upload"), form.get("settings")
                if isinstance(settings, UploadFile) and settings.filename:
                    field = "settings"
                    read = await settings.read(MOST_POSTED)
                    draft = await run_in_threadpool(self._reopened, read)
                    return self._to_steps(request, draft)
                if isinstance(upload, UploadFile) and upload.filename:
                    field, typed["upload"] = "upload", upload.filename
                    name = await self._uploaded(upload)
                await run_in_threadpool(self._look, name)
            except (SfumatoError, OSError) as error:
                return self._back_to(request.url_for("home"), Draft(typed, {field: str(error)}))
        return RedirectResponse(request.url_for("fit").include_query_params(file=name), 303)

    def _look(self, name: str) -> None:
        look_at(self._shop.folder.find(name))

    async def _uploaded(self, upload: UploadFile) -> str:
        """Keep an upload, in place of an older one of its name; whatever is no table is not kept."""
        folder = self._shop.folder
        place = folder.place_for(upload.filename or "")
        if self._shop.running is not None:
            raise SettingError("a fit is running, which may read this file: wait until it has ended")
        beside = place.with_name(f"{secrets.token_hex(8)}-{place.name}")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                while part := await upload.read(_CHUNK):
                    await run_in_threadpool(file.write, part)
            try:
                await run_in_threadpool(look_at, beside)
            except SfumatoError as error:
                raise DataError(str(error).replace(beside.name, place.name)) from error
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)
        return folder.name_of(place)

    def _reopened(self, text: bytes) -> Draft:
        """All steps as a file of settings says."""
        return self._filled(Settings.of(text))

    def _filled(self, settings: Settings) -> Draft:
        """All steps as settings say, of a file that has the same columns still."""
        asked = self._shop.asked({**settings.fields, "file": settings.file}, None)
        if asked.table.names != settings.columns:
            raise SettingError(
                f"{settings.file} has other columns than when these settings were written"
            )
        return _at_the_end({**settings.fields, "file": settings.file})

    # -- the steps of a fit -----------------------------------------------------------------------

    async def fit(self, request: Request) -> Response:
        """The first step, of a file or of an earlier fit."""
        again = self._shop.ordered.get(request.query_params.get("again", ""))
        if again is not None:
            draft = await run_in_threadpool(self._filled, again.settings)
            return await run_in_threadpool(self._stepped, draft)
        raw = {"file": request.query_params.get("file", "")}
        asked = await run_in_threadpool(self._shop.asked, raw, None)
        return await run_in_threadpool(self._steps, asked, STEPS[0], rows=False)

    async def step(self, request: Request) -> Response:
        """Keep what was typed, and lead to the page of it."""
        raw = await self._posted(request)
        _places_of(raw)
        await run_in_threadpool(self._look, raw.get("file", ""))
        return self._to_steps(request, Draft(raw))

    async def steps(self, request: Request) -> Response:
        draft = self._shop.drafts.find(request.path_params["id"])
        if draft is None:
            raise HTTPException(410, _GONE)
        return await run_in_threadpool(self._stepped, draft)

    def _stepped(self, draft: Draft) -> Response:
        """The page after a step: with the next one open, or with what is wrong."""
        raw, rows, refusal = draft.fields, bool(draft.fields.get("rows")), draft.errors.get("refusal")
        step, at = _places_of(raw)
        open_now = at if rows else max(step + 1, at)
        if open_now == 0:  # to look at the data is no step
            return self._steps(self._shop.asked(raw, None), STEPS[0], rows=rows)
        asked = self._shop.asked(raw, STEPS[open_now - 1])
        return self._steps(asked, asked.wrong or _PLACES[open_now], rows=rows, refusal=refusal)

    def _steps(self, asked: Asked, step: str, *, rows: bool, refusal: str | None = None) -> Response:
        """The page with all steps up to one; with what the planner says at the end."""
        told = spent = nonce = None
        form, differs = asked.form, tuple[str, ...]()
        if step == "confirm":
            choices = form.choices()
            try:
                told, spent = expected(choices), self._shop.spending(asked, choices)
            except SfumatoError as error:
                form.errors["goal"], step = str(error), "budget"
            else:
                nonce = self._shop.confirmation(asked, choices, told, spent)
                differs = self._shop.differs(asked)
        raw = {**_USUAL, **form.raw}
        reached = _PLACES.index(step)
        status = 400 if form.errors or refusal else 200
        facts = {"table": asked.table, "reached": reached, "rows": rows, "told": told, "spent": spent}
        facts |= {"nonce": nonce, "refusal": refusal, "differs": differs}
        return self._shown(
            "fit.html", status, _names(asked.file, form.columns), form=form, raw=raw, **facts, step=step
        )

    async def expect(self, request: Request) -> Response:
        """What the planner says of the form as it is now, as a part of the page."""
        return await run_in_threadpool(self._expect, await self._posted(request))

    def _expect(self, raw: Mapping[str, str]) -> Response:
        asked = self._shop.asked(raw, STEPS[-1])
        if asked.wrong is not None:
            first = next(iter(asked.form.errors.values()))
            return self._shown("part_wrong.html", said=f"Not yet: {first}")
        try:
            told = expected(asked.form.choices())
        except SfumatoError as error:
            return self._shown("part_wrong.html", said=str(error))
        return self._shown("part_expected.html", told=told)

    async def preview(self, request: Request) -> Response:
        raw = await self._posted(request)
        ordered = await run_in_threadpool(self._preview, raw)
        return RedirectResponse(request.url_for("job", id=ordered.job.id), 303)

    def _preview(self, raw: Mapping[str, str]) -> Ordered:
        asked = self._shop.asked(raw, STEPS[-1])
        if asked.wrong is not None:
            raise SettingError(next(iter(asked.form.errors.values())))
        return self._shop.start_preview(asked)

    async def start(self, request: Request) -> Response:
        """Spend, if this was confirmed as it stands."""
        raw = await self._posted(request)
        found = await run_in_threadpool(self._start, raw)
        if isinstance(found, Draft):
            return self._to_steps(request, found)
        return RedirectResponse(request.url_for("job", id=found.job.id), 303)

    def _start(self, raw: Mapping[str, str]) -> Ordered | Draft:
        asked = self._shop.asked(raw, STEPS[-1])
        if asked.wrong is not None:
            return _at_the_end(raw)
        try:
            return self._shop.start(asked, raw.get("nonce", ""))
        except SfumatoError as error:
            return _at_the_end(raw, {"refusal": str(error)})

    # -- a fit, and what came of it ---------------------------------------------------------------

    async def job(self, request: Request) -> Response:
        typed = self._typed(request)
        asked = None if typed is None else typed.fields
        return await run_in_threadpool(self._job, self._ordered(request), "job.html", asked)

    async def job_part(self, request: Request) -> Response:
        return await run_in_threadpool(self._job, self._ordered(request), "part_job.html")

    def _job(self, ordered: Ordered, template: str, asked: Mapping[str, str] | None = None) -> Response:
        job, state = ordered.job, ordered.job.state
        facts: dict[str, Any] = {"ordered": ordered, "job": job, "state": state, "listed": None}
        facts |= {"model": None, "held_out": [], "remark": None, "asked": asked or {}, "labels": {}}
        account = None if ordered.before is None else account_of(ordered.before.path)
        facts |= {"account": account, "room": None if account is None else room_in(account)}
        if state == "done":
            held_out = results.held_out(job.result)
            facts |= {"held_out": held_out, "remark": results.does_not_pay(held_out)}
            if not ordered.is_preview:
                facts["model"] = results.fitted(ordered.places.out)
                facts["labels"] = results.suggested(ordered.places.out)
        if asked is not None and facts["model"] is not None:
            facts["listed"] = self._listed(ordered, facts["model"], asked)
        names = _names(ordered.places.file, ordered.settings.columns)
        return self._shown(template, names=names, step=job.step(), **facts)

    @staticmethod
    def _listed(ordered: Ordered, model: results.Fitted, asked: Mapping[str, str]) -> dict[str, Any]:
        """The list that was asked for, or what is wrong with it."""
        mode = asked.get("mode", "")
        if mode not in model.listable:
            return {"wrong": "choose what to list", "rows": []}
        labels = {name: asked.get(f"label-{m}", "").strip() for m, name in enumerate(model.modes)}
        try:
            return {"wrong": None, "rows": results.top_list(ordered.places.out, mode, labels)}
        except SfumatoError as error:
            return {"wrong": str(error), "rows": []}

    async def top(self, request: Request) -> Response:
        """Keep what to list, which can name a person: no address of a browser's history holds it."""
        raw, ordered = await self._posted(request), self._ordered(request)
        return self._back_to(request.url_for("job", id=ordered.job.id), Draft(raw))

    async def cancel(self, request: Request) -> Response:
        await self._posted(request)
        ordered = self._ordered(request)
        await run_in_threadpool(ordered.job.cancel)
        return RedirectResponse(request.url_for("job", id=ordered.job.id), 303)

    async def download(self, request: Request) -> Response:
        what, ordered = request.path_params["what"], self._ordered(request)
        if ordered.is_preview or what not in _DOWNLOADS:
            raise HTTPException(404)
        make, kind = _DOWNLOADS[what]
        body = await run_in_threadpool(make, ordered)
        headers = {"content-disposition": f'attachment; filename="{what}"'}
        return Response(body, media_type=kind, headers=headers)

    # -- what requests bring ----------------------------------------------------------------------

    def _ordered(self, request: Request) -> Ordered:
        found = self._shop.ordered.get(request.path_params["id"])
        if found is None:
            raise HTTPException(404)
        return found

    async def _posted(self, request: Request) -> dict[str, str]:
        """The fields of a form of this page."""
        async with request.form(max_files=0, max_fields=2_000, max_part_size=MOST_POSTED) as form:
            self._check_csrf(form)
            return {name: value for name, value in form.items() if isinstance(value, str)}

    def _check_csrf(self, form: FormData) -> None:
        given = form.get("csrf")
        if not isinstance(given, str) or not same(given, self._shop.known.csrf):
            raise HTTPException(403, "This form is not of this page, or of an earlier start of it.")


def _places_of(raw: Mapping[str, str]) -> tuple[int, int]:
    """The step whose button was pressed, and the last one that was open."""
    step, at = raw.get("step", STEPS[0]), raw.get("at", STEPS[0])
    if step not in STEPS or at not in _PLACES:
        raise SettingError("there is no such step")
    return _PLACES.index(step), _PLACES.index(at)


def _at_the_end(raw: Mapping[str, str], errors: Mapping[str, str] | None = None) -> Draft:
    """All steps open, as far as they are filled in well."""
    return Draft({**raw, "step": STEPS[-1], "at": _PLACES[-1], "rows": ""}, errors or {})


def _names(file: Path, columns: Collection[str]) -> list[str]:
    """What sentences may begin with that is no word of theirs."""
    return [file.name, str(file), *columns]


def _short(number: float) -> str:
    """A number to look at: three digits, or whole where it is large."""
    return f"{number:,.0f}" if abs(number) >= 1_000 else f"{number:#.3g}".rstrip(".")


def _made(ordered: Ordered) -> Path:
    """The folder of a fit that has ended well."""
    if ordered.job.state != "done":
        raise HTTPException(404)
    return ordered.places.out


def _held_back(ordered: Ordered) -> bytes:
    """The holder's report of a fit that has ended well, with all that is said of it here."""
    model, ledger = _made(ordered), ordered.places.ledger
    errors = results.held_out(ordered.job.result)
    remark = results.does_not_pay(errors)
    said = [sentence(in_page_words(line)) + "." for line in ordered.differs]
    return results.holders_report(model, ledger, errors, [*([remark] if remark else []), *said])


_DOWNLOADS: dict[str, Any] = {
    "release.zip": (lambda each: results.release_zip(_made(each)), "application/zip"),
    "report.html": (lambda each: results.release_report(_made(each)), "text/html"),
    "report-not-for-release.html": (_held_back, "text/html"),
    "command.sh": (lambda each: command_line(each.job.words), "text/x-shellscript"),
    "fit.py": (lambda each: scripts.script(each.choices, each.epsilon, each.places), "text/x-python"),
    "fit.ipynb": (
        lambda each: scripts.notebook(each.choices, each.epsilon, each.places),
        "application/x-ipynb+json",
    ),
    "settings.json": (lambda each: each.settings.text(), "application/json"),
}
