// Before the first paint, so that a page in the dark does not begin with a flash of white.
try {
  const chosen = localStorage.getItem("qo-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be forbidden; then the system's preference counts.
}
