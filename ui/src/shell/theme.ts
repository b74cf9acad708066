/** Light or dark, as public/theme.js has set it. */

export function currentTheme(): "light" | "dark" {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
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
