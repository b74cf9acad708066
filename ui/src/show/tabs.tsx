/** Views of one thing, side by side. Each has an address of its own. */

import type { JSX } from "preact";

interface Tab {
  id: string;
  title: string;
  href: string;
}

export function Tabs({ label, tabs, chosen }: { label: string; tabs: Tab[]; chosen: string }): JSX.Element {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((each) => (
        <a key={each.id} href={each.href} {...(each.id === chosen ? { "aria-current": "page" as const } : {})}>
          {each.title}
        </a>
      ))}
    </nav>
  );
}
