#!/bin/sh
# An MCP server over standard input and output with the tool "add", as small as it
# can be: one message is one line, and is read by pattern.
test "$1" = "with an argument" && test -f src/server.sh || exit 2
env >"$MCP_LOG.env"
value() { printf '%s' "$line" | sed -n "s/.*\"$1\":\\(\"[^\"]*\"\\|[0-9]*\\).*/\\1/p"; }
reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$(value id)" "$1"; }
while IFS= read -r line; do
	printf '%s\n' "$line" >>"$MCP_LOG"
	case $line in
	*'"method":"initialize"'*)
		reply '{"protocolVersion":'"$(value protocolVersion)"',"capabilities":{"tools":{}},"serverInfo":{"name":"calc","version":"1"}}' ;;
	*'"method":"tools/list"'*)
		reply '{"tools":[{"name":"add","description":"adds two numbers","inputSchema":{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}}}}]}' ;;
	*'"method":"tools/call"'*)
		reply '{"content":[{"type":"text","text":"the sum is '$(($(value a) + $(value b)))'"}]}' ;;
	*'"id":'*)
		reply '{}' ;;
	esac
done
