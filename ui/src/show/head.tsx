/** The headings of a table. */

import type { JSX } from "preact";

/** One for each column; those of numbers begin with #. */
export function Head({ columns }: { columns: string[] }): JSX.Element {
  return (
    <thead>
      <tr>
        {columns.map((each) => (
          <th key={each} scope="col" class={each.startsWith("#") ? "number" : undefined}>
            {each.replace("#", "")}
          </th>
        ))}
      </tr>
    </thead>
  );
}
