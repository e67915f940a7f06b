"""A headless Chromium, driven through the DevTools protocol over two pipes. It needs no package and no port."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

__all__ = ["Page", "find_chromium", "open_page"]

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
WAIT_SECONDS = 60.0
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)
Values = dict[str, object]


def find_chromium() -> str | None:
    """Return the path of a Chromium on this machine, or ``None`` if there is none."""
    return next((path for path in map(shutil.which, PROGRAMS) if path), None)


class Page:
    """One tab of the browser.

    Attributes:
       problems: Errors and warnings of the console, exceptions, and requests to servers, since the tab was opened.
    """

    def __init__(self, send: IO[bytes], receive: IO[bytes]) -> None:
        self._send = send
        self._receive = receive
        self._number = 0
        self._session: str | None = None
        self._events: list[str] = []
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = cast(str, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> Values:
        """Call a method of the protocol and return its result. Raises ``AssertionError`` if the browser refuses."""
        self._number += 1
        message: Values = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._send.write(json.dumps(message).encode() + b"\0")
        self._send.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return cast(Values, answer["result"])

    def _read(self) -> Values:
        """Return the next message of the browser, and add the problems that it reports to ``problems``."""
        data = bytearray()
        while (byte := self._receive.read(1)) != b"\0":
            assert byte, "the browser has ended"
            data += byte
        message = cast(Values, json.loads(data))
        method = str(message.get("method", ""))
        parameters = cast("Mapping[str, Mapping[str, object]]", message.get("params", {}))
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and str(parameters["type"]) in {"error", "warning", "assert"}:
            self.problems.append(str(parameters["args"]))
        elif method == "Log.entryAdded":
            self.problems.append(str(parameters["entry"]["text"]))
        elif method == "Network.requestWillBeSent" and not str(parameters["request"]["url"]).startswith("file:"):
            self.problems.append(f"request: {parameters['request']['url']}")
        return message

    def show(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the size of the window and the colour scheme, ``light`` or ``dark``."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def load(self, file: Path) -> None:
        """Open a file and wait until it is loaded."""
        self._events.clear()
        self.call("Page.navigate", url=file.resolve().as_uri())
        while "Page.loadEventFired" not in self._events:
            self._read()

    def run(self, script: str) -> object:
        """Return the value of an expression in the page. A promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return cast(Values, answer["result"]).get("value")

    def press(self, *keys: str) -> None:
        """Press keys one after another, by their DOM names (``ArrowRight``, ``Tab``, ``7``)."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            code = KEY_CODES.get(key, ord(key[0]))
            for kind in ("keyDown", "keyUp"):
                typed = text if kind == "keyDown" else {}
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **typed)


KEY_CODES = {
    "Tab": 9,
    "Enter": 13,
    "PageUp": 33,
    "PageDown": 34,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Backspace": 8,
}


@contextmanager
def open_page(profile: Path) -> Iterator[Page]:
    """Start Chromium with an empty profile folder, and yield a tab. The browser ends with the block."""
    program = find_chromium()
    assert program, f"Install Chromium: none of {', '.join(PROGRAMS)} is on the PATH"
    to_child, send = os.pipe()
    receive, from_child = os.pipe()
    # The browser reads commands from descriptor 3 and writes answers to descriptor 4.
    command = f'exec "$@" 3<&{to_child} 4>&{from_child}'
    child = subprocess.Popen(
        ["bash", "-c", command, "bash", program, *OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=(to_child, from_child),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_child)
    os.close(from_child)
    try:
        with open(send, "wb") as commands, open(receive, "rb", buffering=1 << 16) as answers:  # noqa: PTH123 - descriptors
            yield Page(commands, answers)
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the browser and all processes of its session."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        give_up = time.monotonic() + WAIT_SECONDS / 10
        while child.poll() is None and time.monotonic() < give_up:
            os.killpg(child.pid, signal_number)
            time.sleep(0.1)
    child.wait(WAIT_SECONDS)
