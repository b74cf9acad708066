/** What narrows a list: choices, words, and the way to one thing by its id. */

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";

interface Lookup {
  idOf: (text: string) => string | null; // Null for what cannot be one.
  wrong: string; // What is said of that.
  open: (id: string) => void;
  children: ComponentChildren;
}

export function Filters({ idOf, wrong, open, children }: Lookup): JSX.Element {
  const [text, setText] = useState("");
  const id = idOf(text);
  return (
    <form
      class="filters"
      onSubmit={(event) => {
        event.preventDefault();
        if (id) open(id);
      }}
    >
      {children}
      <label class="field">
        Id
        <input
          data-find
          class="mono"
          size={36}
          value={text}
          placeholder="paste an id, press enter (f)"
          onInput={(event) => setText(event.currentTarget.value)}
          aria-invalid={text !== "" && !id}
        />
      </label>
      {/* Of a form with several fields and no such button, browsers take no Enter. */}
      <button type="submit" disabled={!id}>
        Open
      </button>
      {text && !id && <span class="s-failed">{wrong}</span>}
    </form>
  );
}

interface Asked {
  label: string;
  value: string | undefined;
  onChoose: (value: string) => void;
}

export function Choice({
  label,
  value,
  any,
  of,
  onChoose,
}: Asked & { any: string; of: readonly string[] }): JSX.Element {
  return (
    <label class="field">
      {label}
      <select value={value ?? ""} onChange={(event) => onChoose(event.currentTarget.value)}>
        <option value="">{any}</option>
        {of.map((each) => (
          <option key={each} value={each}>
            {each}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Word({ label, value, disabled, onChoose }: Asked & { disabled?: boolean }): JSX.Element {
  // The list is looked at anew while somebody types: what is typed stays until it is chosen or the field is left.
  const [typed, setTyped] = useState<string | null>(null);
  return (
    <label class="field">
      {label}
      <input
        value={typed ?? value ?? ""}
        placeholder="any"
        disabled={disabled}
        onInput={(event) => setTyped(event.currentTarget.value)}
        onBlur={() => setTyped(null)}
        onChange={(event) => {
          setTyped(null);
          onChoose(event.currentTarget.value.trim());
        }}
      />
    </label>
  );
}
