"""Just enough of a browser to log in to the admin and press a button."""

from http.cookiejar import CookieJar
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

from example_project.demo_processes import DemoError

SECONDS = 60


class Browser:
    """Follows redirects, keeps cookies, sends Django's CSRF token. ``url`` is the address it has come to."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.url = ""
        self._cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._cookies))

    def get(self, path: str) -> str:
        """Return the page; ``DemoError`` when the server refuses it."""
        return self._open(path, None)

    def submit(self, path: str, **fields: str) -> str:
        """Open the page, send its form with these fields, and return the page that follows."""
        self.get(path)
        token = next((cookie.value or "" for cookie in self._cookies if cookie.name == "csrftoken"), "")
        return self._open(path, urlencode({**fields, "csrfmiddlewaretoken": token}).encode())

    def _open(self, path: str, data: bytes | None) -> str:
        try:
            with self._opener.open(self.base_url + path, data, timeout=SECONDS) as response:
                self.url = response.url
                return str(response.read().decode())
        except HTTPError as error:
            message = f"{self.base_url}{path} answered {error.code} {error.reason}."
            raise DemoError(message) from error
