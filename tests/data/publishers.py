"""Small files in the formats of the publishers, and a server that stands in for them."""

import csv
import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np


def idx_bytes(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    return gzip.compress(head + array.astype(np.uint8).tobytes(), mtime=0)


def write_mnist(folder: Path, train: int = 30, test: int = 10) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    arrays = {}
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", train), ("t10k", test)):
        arrays[f"{part}-images-idx3-ubyte.gz"] = draw.integers(0, 256, (n, 28, 28))
        arrays[f"{part}-labels-idx1-ubyte.gz"] = np.arange(n) % 10
    for name, array in arrays.items():
        (folder / name).write_bytes(idx_bytes(array))
    return arrays


def write_cifar(folder: Path, names: list[str], labels: int = 1, n: int = 7) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(1)
    records = draw.integers(0, 10, (len(names) * n, labels + 3072)).astype(np.uint8)
    for i, name in enumerate(names):
        (folder / name).write_bytes(records[i * n : (i + 1) * n].tobytes())
    return records


def write_news(path: Path, rows: list[tuple[int, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([c, "", text] for c, text in rows)


class Mirror:
    """Serves a folder over HTTP; it can break off, ignore ranges, and remembers what it was asked."""

    def __init__(self, folder: Path):
        self.folder, self.asked, self.break_after, self.ranges = folder, [], None, True
        self.url = ""

    @contextmanager
    def running(self) -> Iterator["Mirror"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.asked.append((self.path, self.headers.get("Range")))
                path = mirror.folder / self.path.lstrip("/")
                if not path.is_file():
                    self.send_error(404)
                    return
                body, begin = path.read_bytes(), 0
                if mirror.ranges and (wanted := self.headers.get("Range")):
                    begin = int(wanted.removeprefix("bytes=").rstrip("-"))
                if begin and begin >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206 if begin else 200)
                self.send_header("Content-Length", str(len(body) - begin))
                self.end_headers()
                body = body[begin:] if mirror.break_after is None else body[begin : mirror.break_after]
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
