"""A test double of the session client of executors, and an executor that calls all of it.

It sends the requests of the original, without authorization, to AGENT_ORCHESTRATOR_API_URL.
"""
import json
import os
import sys
import urllib.error
import urllib.request

TIMEOUT = 5.0


class SessionClientError(Exception):
    pass


class SessionNotFoundError(SessionClientError):
    pass


class SessionClient:
    def __init__(self, base_url):
        self.base_url = base_url.rstrip("/")

    def _request(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(self.base_url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                text = answer.read()
        except urllib.error.HTTPError as e:
            detail = e.read().decode()
            try:
                detail = json.loads(detail)["detail"]
            except (ValueError, KeyError):
                pass
            kind = SessionNotFoundError if e.code == 404 else SessionClientError
            raise kind(f"{e.code}: {detail}") from None
        except (OSError, urllib.error.URLError) as e:
            raise SessionClientError(f"request failed: {e}") from None
        return json.loads(text) if text else None

    def bind(self, session_id, executor_session_id, project_dir=None):
        body = {"session_id": session_id, "executor_session_id": executor_session_id}
        if project_dir:
            body["project_dir"] = project_dir
        return self._request("POST", "/bind", body)["session"]

    def get_session(self, session_id):
        return self._request("GET", f"/sessions/{session_id}")["session"]

    def get_status(self, session_id):
        return self._request("GET", f"/sessions/{session_id}/status")["status"]

    def get_result(self, session_id):
        return self._request("GET", f"/sessions/{session_id}/result")["result"]

    def get_affinity(self, session_id):
        return self._request("GET", f"/sessions/{session_id}/affinity")

    def list_sessions(self):
        return self._request("GET", "/sessions")["sessions"]

    def add_event(self, session_id, event):
        self._request("POST", "/events", {"session_id": session_id, **event})

    def update_session(self, session_id, last_resumed_at=None, executor_session_id=None):
        body = {"session_id": session_id}
        if last_resumed_at is not None:
            body["last_resumed_at"] = last_resumed_at
        if executor_session_id is not None:
            body["executor_session_id"] = executor_session_id
        return self._request("PATCH", "/metadata", body)["session"]

    def delete_session(self, session_id):
        try:
            self._request("DELETE", f"/sessions/{session_id}")
            return True
        except SessionNotFoundError:
            return False


def attempt(call, *args):
    try:
        return call(*args)
    except SessionClientError as e:
        return f"{type(e).__name__}: {e}"


def main():
    own = os.environ["AGENT_SESSION_ID"]
    if "invocation" in sys.argv:
        invoked = json.loads(sys.stdin.readline())["session_id"]
        if invoked != own:
            raise SystemExit(f"the invocation is of {invoked}, and AGENT_SESSION_ID is {own}")
    client = SessionClient(os.environ["AGENT_ORCHESTRATOR_API_URL"])
    nowhere = SessionClient("http://127.0.0.1:1")
    print(json.dumps({
        "bind": attempt(client.bind, own, "executor-1", "/project"),
        "event": attempt(client.add_event, own, {"event_type": "message", "role": "assistant"}),
        "result event": attempt(client.add_event, own, {"event_type": "result", "result_text": "done"}),
        "update": attempt(client.update_session, own, "2026-01-01T00:00:00Z", "executor-2"),
        "session": attempt(client.get_session, own),
        "status": attempt(client.get_status, own),
        "result": attempt(client.get_result, own),
        "affinity": attempt(client.get_affinity, own),
        "sessions": attempt(client.list_sessions),
        "other": attempt(client.get_session, "ses_other"),
        "bind other": attempt(client.bind, "ses_other", "executor-1"),
        "delete": attempt(client.delete_session, own),
        "delete again": attempt(client.delete_session, own),
        "deleted": attempt(client.get_session, own),
        "nowhere": attempt(nowhere.get_session, own).split(":")[0],
    }, sort_keys=True))


main()
