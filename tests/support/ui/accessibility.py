"""What axe finds on a page of the dashboard. The tab must be opened with ``bypass_csp``: the page admits no script."""

from __future__ import annotations

import json
from pathlib import Path

from support.ui.browsers import Tab

AXE = Path(__file__).parents[3] / "ui/node_modules/axe-core/axe.min.js"


async def violations(tab: Tab, *rules: str) -> list[str]:
    """What axe finds; by these rules only, if some are named."""
    found = await tab.page.evaluate(
        "rules => axe.run(document, rules.length ? { runOnly: rules } : {}).then(found => found.violations)",
        list(rules),
    )
    return [f"{each['id']} ({each['impact']}): {json.dumps([n['html'] for n in each['nodes']])}" for each in found]
