"""A rollout worker in a process of its own: opens an episode, gives some turns, and then draws for ever, until SIGUSR1 or its death.

`python drawing_worker.py PORT TOKEN RUN TURNS [PLAYER]`; without PLAYER its turns are in a journal. Prints a line after each answer.
"""

import asyncio
import json
import signal
import sys

from gradbus.formats.tokens import pack_ids, pack_logprobs
from gradbus.rpc import open_channel
from gradbus.v1 import environment_service_pb2 as pb
from gradbus.v1.environment_service_pb2_grpc import EnvironmentServiceStub


def turn_of(run, session, number):
    request = pb.StepRequest(run_id=run, session=session, turn=number)
    request.assistant.text, request.assistant.finish = f"turn {number}", "stop"
    drawn = request.assistant.drawn
    drawn.prompt_tokens, drawn.token_ids, drawn.logprobs = 3, pack_ids([number, 7]), pack_logprobs([-0.5, -0.25])
    drawn.version_first = drawn.version_last = 4
    return request


async def main(port, token, run, turns, player=""):
    channel = open_channel(f"127.0.0.1:{port}", token)
    stub = EnvironmentServiceStub(channel)
    drawn = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, drawn.set)
    alive = asyncio.ensure_future(stub.KeepAlive(pb.KeepAliveRequest(worker=f"of-{run}")))
    section = json.dumps({"agent": "pull", "step_seconds": 20})
    request = pb.OpenRequest(run_id=run, environment_json=section, episode_id="train.0.0.0", item_json='{"question": "2+2"}')
    request.player, request.worker = player, f"of-{run}"
    session = (await stub.Open(request, timeout=60)).session
    print("opened", flush=True)
    for number in range(int(turns)):
        await stub.Step(turn_of(run, session, number), timeout=60)
        print("answered", flush=True)
    await drawn.wait()
    answer = await stub.Step(turn_of(run, session, int(turns)), timeout=60)
    print(pb.EnvironmentStatus.Name(answer.status), flush=True)
    alive.cancel()


asyncio.run(main(*sys.argv[1:]))
