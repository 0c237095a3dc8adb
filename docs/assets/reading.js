// What scrolls can be reached by keyboard: arrow keys move it once it has the focus. The buttons of code
// blocks are no places to navigate to.
addEventListener("load", () => {
  for (const part of document.querySelectorAll("pre > code, .md-typeset__scrollwrap"))
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  for (const part of document.querySelectorAll(".md-code__nav")) part.role = "presentation";
});
