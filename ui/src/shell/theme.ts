/** Light or dark: as the system prefers, unless it was switched here. */

export type Theme = "light" | "dark" | null;

export function currentTheme(): "light" | "dark" {
  const chosen = document.documentElement.dataset.theme;
  if (chosen === "light" || chosen === "dark") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function switchTheme(): void {
  const theme = currentTheme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("qo-theme", theme); // The only thing that this page ever stores.
  } catch {
    // Storage may be forbidden; then it holds until the page is closed.
  }
}
