"""Resources servers on NeMo Gym's own package (a checkout as PYTHONPATH): `python nemo_gym_server.py turns|counter PORT`."""

import json
import sys
from unittest.mock import MagicMock

import uvicorn
from nemo_gym.server_utils import ServerClient
from pydantic import Field
from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer
from resources_servers.gymnasium import GymnasiumServer, extract_text


class Turns(GymnasiumServer):
    """Adds up the numbers that a tool is given, until the policy says the sum."""

    sums: dict[str, int] = Field(default_factory=dict)

    async def reset(self, metadata, session_id=None):
        self.sums[session_id] = metadata["begin"]
        return f"The sum is {metadata['begin']}.", {}

    async def step(self, action, metadata, session_id=None):
        calls = [one for one in action.output if one.type == "function_call"]
        if calls:
            outputs = []
            for call in calls:
                self.sums[session_id] += json.loads(call.arguments)["number"]
                outputs.append(self.tool_output(call, {"added": True}))
            return None, 0.0, False, False, {"tool_outputs": outputs}
        if extract_text(action) == "crash":
            raise RuntimeError("an unlucky text")
        if extract_text(action) == str(self.sums[session_id]):
            return None, 1.0, True, False, {}
        return "That is not the sum.", -0.1, False, False, {}


if __name__ == "__main__":
    kind = {"turns": Turns, "counter": StatefulCounterResourcesServer}[sys.argv[1]]
    settings = kind.model_fields["config"].annotation
    config = settings(host="127.0.0.1", port=int(sys.argv[2]), entrypoint="", name=sys.argv[1], domain="agent")
    server = kind(config=config, server_client=MagicMock(spec=ServerClient))
    application = server.setup_webserver()
    server.setup_exception_middleware(application)
    uvicorn.run(application, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
