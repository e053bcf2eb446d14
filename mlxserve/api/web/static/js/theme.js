// Runs before the first paint: the stored theme wins over the system's. Everything else is in main.js.
(() => {
  const theme = localStorage.getItem("mlxserve.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
