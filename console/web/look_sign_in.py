"""The sign-in page: plain HTML that needs no script. Pure."""

from typing import TYPE_CHECKING

from relight.console.web.look import Html, join, link, path, tag

if TYPE_CHECKING:
    from relight.console.web.sign_in import SignInView

_STYLE = Html("""
:root { color-scheme: light dark; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; font: 16px/1.5 system-ui, sans-serif;
  background: light-dark(#f6f7f9, #0e1318); color: light-dark(#16202c, #e3e9ef); }
main { width: min(360px, calc(100vw - 32px)); background: light-dark(#fff, #161d25); border-radius: 12px; padding: 28px;
  border: 1px solid light-dark(#dfe3e8, #28323d); box-sizing: border-box; }
h1 { margin: 0 0 4px; font-size: 1.3rem; } p { margin: 0 0 18px; color: light-dark(#556270, #9dabb9); }
label { display: block; font-weight: 600; font-size: 0.9rem; margin-bottom: 5px; }
input { width: 100%; box-sizing: border-box; font: inherit; padding: 9px 11px; border-radius: 8px; margin-bottom: 14px;
  border: 1px solid light-dark(#8b96a3, #66758a); background: transparent; color: inherit; }
button, .button { display: block; width: 100%; box-sizing: border-box; font: inherit; font-weight: 600;
  padding: 10px; border: 0;
  border-radius: 8px; text-align: center; text-decoration: none; cursor: pointer;
  background: light-dark(#1f5fbf, #82b1ff); color: light-dark(#fff, #0b1420); }
.wrong { color: light-dark(#b3261e, #ff8f87); font-weight: 600; } hr { border: 0; margin: 18px 0;
  border-top: 1px solid light-dark(#dfe3e8, #28323d); }
:focus-visible { outline: 2px solid light-dark(#1f5fbf, #82b1ff); outline-offset: 2px; }
""")


def sign_in_page(view: "SignInView") -> str:
    """The whole page: a token's field, a provider's button, or both; and what went wrong the last time."""
    body = [tag("h1", "Relight"), tag("p", "Sign in to see your jobs and to decide.")]
    if view.wrong:
        body.append(tag("p", view.wrong, class_="wrong", role="alert"))
    if view.oidc:
        body.append(link(path("sign-in", "oidc", next=view.next), view.oidc, class_="button"))
    if view.oidc and view.token:
        body.append(tag("hr"))
    if view.token:
        fields = [
            tag("label", "Token", for_="token"),
            tag("input", id="token", name="token", type="password", autocomplete="current-password", required=True),
            tag("input", name="next", type="hidden", value=view.next),
            tag("button", "Sign in", type="submit"),
        ]
        body.append(tag("form", *fields, method="post", action="/sign-in"))
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", "Sign in · Relight"),
        tag("style", _STYLE),
    ]
    return join(Html("<!doctype html>"), tag("html", tag("head", *head), tag("body", tag("main", *body)), lang="en"))
