"""Opens pages in a headless Chromium, by the DevTools protocol over a pair of pipes: no package and no port needed."""

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

# Debian's name, Google's, Ubuntu's.
_PROGRAMS = ("chromium", "google-chrome", "chromium-browser")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_SECONDS = 30.0
# DevTools: key, code, virtual key code, text.
_KEYS = {
    "Tab": ("Tab", "Tab", 9, ""),
    "Enter": ("Enter", "Enter", 13, "\r"),
    "Space": (" ", "Space", 32, " "),
    "ArrowRight": ("ArrowRight", "ArrowRight", 39, ""),
    "ArrowDown": ("ArrowDown", "ArrowDown", 40, ""),
}


def program() -> str | None:
    """The browser's program, None if this machine has none."""
    return next(filter(None, map(shutil.which, _PROGRAMS)), None)


class Browser:
    """One browser with one page.

    Attributes:
      errors: what the console and the page's scripts said went wrong, of the page that is open.
      requests: the addresses that the open page asked for, its own included.
    """

    def __init__(self, folder: Path) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._ids, self._events, self._rest = itertools.count(1), [], b""
        (read, self._write), (self._read, write) = os.pipe(), os.pipe()
        # Chromium reads from 3 and writes to 4, so the pipes' own numbers stay clear of both.
        given = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
        words = [program(), *_FLAGS, f"--user-data-dir={folder}"]
        shell = ["bash", "-c", f'exec "$@" 3<&{given[0]} 4>&{given[1]}', "sh"]
        with (folder / "stderr.txt").open("wb") as noise:
            self._process = subprocess.Popen([*shell, *words], pass_fds=given, stderr=noise, stdout=noise)
        for end in (read, write, *given):
            os.close(end)
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """Ends the browser."""
        self._session = None
        with contextlib.suppress(AssertionError, OSError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def call(self, method: str, **parameters) -> dict:
        """Sends one command; returns its result."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _SECONDS
        while time.monotonic() < end:
            answer = self._next(end)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
        raise AssertionError(f"{method}: no answer in {_SECONDS:.0f} s")

    def _next(self, end: float) -> dict:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._read, 1 << 20) if ready else b""
            assert part, "the browser ended" if ready else "the browser does not answer"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(text)
        if "method" in message:
            self._note(message["method"], message["params"])
        return message

    def _note(self, method: str, said: dict) -> None:
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(said["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.errors.append(str([argument.get("value") for argument in said["args"]]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def open(self, address: str | Path) -> None:
        """Opens a file or an address, and waits until it has loaded."""
        address = address if isinstance(address, str) else address.resolve().as_uri()
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.errors, self.requests, self._events = [], [], []
        self.call("Page.navigate", url=address)
        end = time.monotonic() + _SECONDS
        while "Page.loadEventFired" not in self._events:
            self._next(end)

    def run(self, script: str):
        """The value of an expression of the page; a promise is waited for."""
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def until(self, script: str, seconds: float = _SECONDS) -> None:
        """Waits until an expression of the page is true."""
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"not in {seconds} s: {script}"
            time.sleep(0.05)

    def look(self, width: int = 1300, height: int = 900, scheme: str = "light") -> None:
        """Sets the window's size in CSS pixels and the color scheme that the reader prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str, times: int = 1) -> None:
        """Presses a key: a name of `_KEYS`, or a letter."""
        name, code, number, text = _KEYS.get(key, (key, "", ord(key[0].upper()), key))
        about = {"key": name, "code": code, "windowsVirtualKeyCode": number}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {}))
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def write(self, text: str) -> None:
        """Types text, letter by letter."""
        for letter in text:
            self.press("Space" if letter == " " else letter)

    def picture(self, path: Path, whole: bool = True) -> None:
        """Writes a picture of the page, or of the window alone."""
        said = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(said["data"]))
