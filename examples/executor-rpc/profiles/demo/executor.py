#!/usr/bin/env python3
"""An executor that speaks JSON-RPC with agentenv, over a Unix socket or HTTP, in plain Python.

It answers ping, execute_prompt and shutdown. In a sandbox it also gets prompts from standard
input, as every persistent executor does. While it works on a prompt it asks for a key just in
time, asks for permission, and reports what happens.
"""
import json
import os
import socket
import sys
import threading
import urllib.request

SOCKET = os.environ.get("AGENTENV_EXECUTOR_SOCKET")
URL = os.environ.get("AGENTENV_EXECUTOR_URL")
TOKEN = os.environ["AGENTENV_SESSION_TOKEN"]


class Refused(Exception):
    """An error answer of the host."""

    def __init__(self, error):
        super().__init__(f"{error['message']} (code {error['code']})")
        self.code = error["code"]


class SocketHost:
    """The host at the other end of a Unix socket: one message a line, in both directions."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lock, self.last, self.waiting = threading.Lock(), 0, {}

    def send(self, message):
        with self.lock:
            self.socket.sendall(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def request(self, method, **params):
        answered = threading.Event()
        with self.lock:
            self.last += 1
            number = self.last
            self.waiting[number] = [answered, None]
        self.send({"id": number, "method": method, "params": {"session_token": TOKEN, **params}})
        answered.wait()
        answer = self.waiting.pop(number)[1]
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]

    def notify(self, method, **params):
        self.send({"method": method, "params": {"session_token": TOKEN, **params}})

    def messages(self):
        """Yield the requests and notifications of the host; hand answers to whom they belong."""
        for line in self.socket.makefile("rb"):
            message = json.loads(line)
            if "method" in message:
                yield message
            elif message.get("id") in self.waiting:
                entry = self.waiting[message["id"]]
                entry[1] = message
                entry[0].set()


class HTTPHost:
    """The host behind the gateway of a sandbox: messages by POST, those of the host by GET."""

    def __init__(self, url):
        self.url = url
        self.open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def post(self, message):
        request = urllib.request.Request(self.url, json.dumps({"jsonrpc": "2.0", **message}).encode())
        request.add_header("Authorization", "Bearer " + TOKEN)
        with self.open(request) as response:
            return response.read()

    send = post

    def request(self, method, **params):
        answer = json.loads(self.post({"id": 1, "method": method, "params": params}))
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["result"]

    def notify(self, method, **params):
        self.post({"method": method, "params": params})

    def messages(self):
        request = urllib.request.Request(self.url)
        request.add_header("Authorization", "Bearer " + TOKEN)
        with self.open(request) as stream:
            for line in stream:
                yield json.loads(line)


def execute_prompt(host, params):
    """Work on a prompt. A real executor calls a model here."""
    count = 0

    def report(message):
        nonlocal count
        count += 1
        host.notify("report_message", message=message)

    for word in params["prompt"].split():
        kind, _, name = word.partition(":")
        try:
            if kind == "key":  # the key is used, and never shown
                report({"key": name, "length": len(host.request("get_api_key", credential_key=name)["api_key"])})
            elif kind == "run":
                host.request("request_permission", tool_name="Bash", tool_input={"command": name})
                report({"ran": name})
            else:
                report({"text": word})
        except Refused as e:
            report({"refused": word, "code": e.code})
    return {"status": "completed", "message_count": count, "token_usage": {"input_tokens": len(params["prompt"].split())}}


def answer(host, message):
    """Answer a request of the host."""
    handlers = {"ping": lambda host, params: {}, "execute_prompt": execute_prompt, "shutdown": lambda host, params: {}}
    handler = handlers.get(message["method"])
    if handler is None:
        reply = {"error": {"code": -32601, "message": "there is no method " + message["method"]}}
    else:
        try:
            reply = {"result": handler(host, message.get("params", {}))}
        except Exception as e:  # the host must get an answer
            reply = {"error": {"code": -32603, "message": str(e)}}
    host.send({"id": message["id"], **reply})


def serve(host):
    """Answer the requests of the host, until it asks to shut down."""
    for message in host.messages():
        if "id" not in message:
            continue
        if message["method"] == "shutdown":
            answer(host, message)
            break
        threading.Thread(target=answer, args=(host, message), daemon=True).start()


def main():
    if SOCKET:
        serve(SocketHost(SOCKET))
        return
    host = HTTPHost(URL)
    threading.Thread(target=serve, args=(host,), daemon=True).start()
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("type") == "shutdown":
            break
        result = execute_prompt(host, message["parameters"])
        print(json.dumps({"type": "turn_complete", "result": result}), flush=True)


if __name__ == "__main__":
    if "--help" in sys.argv:
        print(__doc__)
    elif "--version" in sys.argv:
        print("agentenv example executor 1")
    else:
        main()
