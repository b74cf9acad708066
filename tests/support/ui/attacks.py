"""Texts that would run as a script in a page that took them for HTML, and how to see that none did."""

from __future__ import annotations

from support.ui.browsers import CANARY, Tab

SCRIPT = f"window.{CANARY}=1"
ATTEMPTS = [
    f"<script>{SCRIPT}</script>",
    f"<img src=x onerror={SCRIPT}>",
    f"<svg onload={SCRIPT}>",
    f"\"'><iframe srcdoc='<script>parent.{CANARY}=1</script>'>",
    f"javascript:{SCRIPT}",
    f"</pre></textarea></title><style>@import 'http://192.0.2.1/x'</style><b onmouseover={SCRIPT}>",
    f"{{{{constructor.constructor('{SCRIPT}')()}}}}",
    f"`; {SCRIPT}; `",
]
EVIL = " ".join(ATTEMPTS)


async def harmless(tab: Tab) -> None:
    assert not await tab.ran_script()
    assert await tab.page.evaluate("({}).polluted === undefined")
    assert await tab.page.locator("iframe, main img, main script").count() == 0
    assert await tab.page.locator("a[href^='javascript:' i]").count() == 0
