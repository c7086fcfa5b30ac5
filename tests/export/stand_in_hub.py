"""A model hub on this machine, as far as huggingface_hub's uploads go: repositories, large files, commits."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_a-token-that-may-write"


class StandInHub:
    """What has been sent to it: `repos` by name, each with its privacy and its files."""

    def __init__(self):
        self.repos = {}
        self.large = {}
        self.calls = []
        self.unknown = []
        self.address = ""


class _Handler(BaseHTTPRequestHandler):
    hub = None

    def log_message(self, *_):
        pass

    def _body(self):
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _give(self, values, status=200):
        text = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_PUT(self):
        content = self._body()
        oid = self.path.rsplit("/", 1)[1]
        assert hashlib.sha256(content).hexdigest() == oid
        self.hub.large[oid] = content
        self._give({})

    def do_GET(self):
        self.hub.calls.append(f"GET {self.path}")
        known = self.hub.repos.get(self.path.removeprefix("/api/models/"))
        if known is None:
            self.hub.unknown.append(self.path)
            self._give({"error": "not found"}, 404)
        else:
            self._give({"id": self.path.removeprefix("/api/models/"), "private": known["private"], "siblings": []})

    def do_POST(self):
        body, path = self._body(), self.path.split("?")[0]
        self.hub.calls.append(f"POST {path}")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and path != "/api/validate-yaml":
            self._give({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._give({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            kinds = {f["path"]: "lfs" if f["path"].endswith((".safetensors", ".gguf")) else "regular" for f in files}
            told = [{"path": p, "uploadMode": kind, "shouldIgnore": False, "oid": None} for p, kind in kinds.items()]
            self._give({"files": told})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            told = [o | {"actions": {"upload": {"href": f"{self.hub.address}/large/{o['oid']}"}}} for o in objects]
            self._give({"transfer": "basic", "objects": told})
        elif "/commit/" in path:
            self._commit(path.removeprefix("/api/models/").split("/commit/")[0], body)
        else:
            self.hub.unknown.append(path)
            self._give({"error": "not found"}, 404)

    def _create(self, asked):
        name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
        known = name in self.hub.repos
        if not known:
            private = asked.get("private") or asked.get("visibility") == "private"  # older and newer clients
            self.hub.repos[name] = {"private": bool(private), "files": {}}
        told = {"url": f"{self.hub.address}/{name}", "name": name, "id": name}
        self._give(told, 409 if known else 200)

    def _commit(self, name, body):
        files = self.hub.repos[name]["files"]
        for row in map(json.loads, body.splitlines()):
            value = row["value"]
            if row["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif row["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
        oid = hashlib.sha1(body).hexdigest()
        told = {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.address}/{name}/commit/{oid}"}
        self._give(told)


@contextmanager
def stand_in_hub():
    hub = StandInHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
