"use strict";
// A figure on the page takes its colours from the stylesheet of the page; a downloaded file needs them inside.
for (const button of document.querySelectorAll("button[data-svg]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const picture = button.closest("figure").querySelector("svg").cloneNode(true);
    const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
    style.textContent = document.getElementById("figure-style").textContent;
    picture.prepend(style);
    const file = new Blob([new XMLSerializer().serializeToString(picture)], {type: "image/svg+xml"});
    const link = document.createElement("a");
    link.href = URL.createObjectURL(file);
    link.download = button.dataset.svg + ".svg";
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
// A table that is wider than the screen says so. The block keeps its names to itself, since a live page runs this twice.
{
  const sizes = new ResizeObserver((seen) => {
    for (const {target} of seen) target.classList.toggle("scrolls", target.scrollWidth > target.clientWidth + 1);
  });
  for (const table of document.querySelectorAll(".wide")) sizes.observe(table);
}
