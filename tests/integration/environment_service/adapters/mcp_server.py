"""A server with tools on MCP's own package: `python mcp_server.py stream|json PORT` or `stdio`; version 1 or 2 of the package."""

import sys

import uvicorn

try:
    from mcp.server.mcpserver import Context, MCPServer
except ModuleNotFoundError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer

sums = {}


def add(number: int, context: Context) -> int:
    """Adds to the sum of the session."""
    session = (
        ""
        if sys.argv[1] == "stdio"
        else (
            context.headers["mcp-session-id"] if hasattr(context, "headers") else context.request_context.request.headers["mcp-session-id"]
        )
    )
    sums[session] = sums.get(session, 0) + number
    return sums[session]


def fail(text: str) -> str:
    """Fails."""
    raise ValueError(text)


if __name__ == "__main__":
    server = MCPServer("sums")
    server.tool()(add)
    server.tool()(fail)
    if sys.argv[1] == "stdio":
        server.run("stdio")
        sys.exit()
    in_one_body = sys.argv[1] == "json"
    if hasattr(server.settings, "json_response"):
        server.settings.json_response = in_one_body
        application = server.streamable_http_app()
    else:
        application = server.streamable_http_app(json_response=in_one_body)
    uvicorn.run(application, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
