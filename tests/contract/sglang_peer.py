"""The routes of an SGLang server that a teacher answers at, as SGLang 0.5.21 has them: same fields, same bounds, a model of the test."""

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Faults:
    """What is wrong with the answers, for a while."""

    status: int = 200
    seconds: float = 0.0
    """Before an answer of /generate."""
    dropped: int = 0
    """Tokens that are missing at the end of an answer."""
    logprob: object = None
    """In place of the last token's."""
    other_token: bool = False
    raw: bytes = b""
    """In place of the whole answer of /generate."""


class SGLangPeer(ThreadingHTTPServer):
    """`table` gives the log-probabilities `[L, V]` of what follows each of L tokens; `encode` a text's ids, and `decode` the reverse."""

    daemon_threads = True

    def __init__(self, table=None, encode=None, decode=None, vocab_size=17, key="", port=0):
        super().__init__(("127.0.0.1", port), _Handler)
        self.table, self.encode, self.decode, self.vocab_size, self.key = table, encode, decode, vocab_size, key
        self.model_path, self.weight_version, self.max_req_input_len = "models/large", "default", 4096
        self.faults = Faults()
        self.asked = []
        """Paths, and bodies of /generate."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """A caller that has left is no error of the server's."""

    def close(self):
        self.shutdown()
        self.server_close()

    def generated(self, asked):
        wanted = asked.get("token_ids_logprob") or []
        if any(not 0 <= token < self.vocab_size for token in wanted):
            words = f"token_ids_logprob contains out-of-vocabulary token id {wanted[0]}; valid range is [0, {self.vocab_size})."
            return 400, {"error": {"message": words}}
        if wanted:
            return 200, {"text": "", "meta_info": {"weight_version": self.weight_version}}
        ids, start, top = asked["input_ids"], asked["logprob_start_len"], asked["top_logprobs_num"]
        assert asked["return_logprob"] is True
        assert asked["sampling_params"] == {"max_new_tokens": 0, "temperature": 1.0}
        assert all(0 <= token < self.vocab_size for token in ids), "SGLang's scheduler ends, and the server with it"
        if len(ids) >= self.max_req_input_len:
            return 400, {"error": {"message": f"Input length ({len(ids)} tokens) exceeds the maximum allowed length."}}
        rows = self.table(ids)
        own = [[None, ids[start], None], *([float(rows[at - 1][ids[at]]), ids[at], None] for at in range(start + 1, len(ids)))]
        likely = [None]
        for at in range(start + 1, len(ids)):
            best = sorted(range(self.vocab_size), key=lambda token, row=rows[at - 1]: -float(row[token]))[:top]
            likely.append([[float(rows[at - 1][token]), token, None] for token in best])
        for pair in own:
            pair[1] = pair[1] if pair[1] < self.vocab_size - 1 else 0  # as SGLang, which takes such ids for padding of images
        faults = self.faults
        if faults.logprob is not None:
            own[-1][0] = faults.logprob
        if faults.other_token:
            own[-1][1] = (own[-1][1] + 1) % self.vocab_size
        kept = len(own) - faults.dropped
        meta = {
            "id": "1",
            "finish_reason": {"type": "length", "length": 0},
            "prompt_tokens": len(ids),
            "weight_version": self.weight_version,
        }
        meta |= {"input_token_logprobs": own[:kept], "output_token_logprobs": []}
        meta |= {"input_top_logprobs": likely[:kept]} if top else {}
        return 200, {"text": "", "output_ids": [], "meta_info": meta}


@dataclass
class _Routes:
    peer: SGLangPeer
    asked: dict = field(default_factory=dict)

    def answer(self, path):
        routes = {"/model_info": self.model, "/server_info": self.server, "/tokenize": self.tokenized, "/detokenize": self.texts}
        if path == "/generate":
            return self.peer.generated(self.asked)
        return routes[path]() if path in routes else (404, {"detail": "Not Found"})

    def model(self):
        return 200, {"model_path": self.peer.model_path, "weight_version": self.peer.weight_version, "is_generation": True}

    def server(self):
        return 200, {"max_req_input_len": self.peer.max_req_input_len, "version": "0.5.21"}

    def tokenized(self):
        if self.peer.encode is None:
            return 500, {"message": "Internal server error during tokenization: 'NoneType' object has no attribute 'encode'"}
        assert self.asked["add_special_tokens"] is False
        tokens = [list(self.peer.encode(text)) for text in self.asked["prompt"]]
        return 200, {"tokens": tokens, "count": [len(ids) for ids in tokens], "max_model_len": 4096}

    def texts(self):
        assert self.asked["skip_special_tokens"] is False
        return 200, {"text": [self.peer.decode(ids) for ids in self.asked["tokens"]]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SGLangPeer

    def do_GET(self):
        self.respond({})

    def do_POST(self):
        self.respond(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def respond(self, asked):
        peer = self.server
        peer.asked.append((self.path, asked) if self.path == "/generate" else (self.path, None))
        if peer.key and self.headers["authorization"] != f"Bearer {peer.key}":
            return self.send(401, b'{"error": "Unauthorized"}')
        if peer.faults.status != 200:
            return self.send(peer.faults.status, b'{"error": {"message": "not now"}}')
        status, found = _Routes(peer, asked).answer(self.path)
        body = json.dumps(found).encode()
        if self.path == "/generate":
            time.sleep(peer.faults.seconds)
            body = peer.faults.raw or body
        return self.send(status, body)

    def send(self, status, body):
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
