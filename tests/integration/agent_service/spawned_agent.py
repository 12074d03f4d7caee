"""An agent that the service starts: asks by the variables of every SDK, and does what the dataset row says. Standard library only."""

import json
import os
import socket
import sys
import time
import urllib.request

OFFER = json.load(sys.stdin)
DO = OFFER["item"]["do"]


def post(path, body):
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def ask(text):
    return post("chat/completions", {"model": "m", "messages": [{"role": "user", "content": text}]})["choices"][0]["message"]["content"]


def reach():
    """What it gets of the machine and its network: for each attempt whether it failed."""
    failed = []
    for family, address in ((socket.AF_INET, ("127.0.0.1", 22)), (socket.AF_INET, ("1.1.1.1", 80)), (socket.AF_UNIX, "\0x")):
        try:
            with socket.socket(family) as one:
                one.settimeout(2)
                one.connect(address)
        except OSError:
            failed.append(True)
    return failed


said = ask(DO)
if DO == "end":
    assert OFFER["api_key"] == os.environ["ANTHROPIC_API_KEY"], "one key for all"
    assert os.environ["ANTHROPIC_BASE_URL"] + "/v1" == OFFER["base_url"]
    post(f"agent/episodes/{OFFER['episode']}/end", {"reward": float(said == "b"), "components": {"mine": float(os.environ["MINE"])}})
elif DO == "reach":
    post(f"agent/episodes/{OFFER['episode']}/end", {"reward": float(len(reach()) == 3 and not os.path.exists("/etc/passwd"))})
elif DO == "fail":
    sys.exit("no idea what to do")
elif DO == "hang":
    post(f"agent/episodes/{OFFER['episode']}/end", {"reward": 1})
    time.sleep(1000)
elif DO == "sleep":
    time.sleep(1000)
