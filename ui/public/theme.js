// Before the first paint, so that a page in the dark does not begin with a flash of white. As the system prefers, and
// follows it, unless something was chosen here.
const dark = matchMedia("(prefers-color-scheme: dark)");

function chosen() {
  try {
    return localStorage.getItem("qo-theme");
  } catch {
    return null; // Storage may be forbidden.
  }
}

function show() {
  const wanted = chosen();
  const theme = wanted === "light" || wanted === "dark" ? wanted : dark.matches ? "dark" : "light";
  document.documentElement.dataset.theme = theme;
}

show();
dark.addEventListener("change", show);
