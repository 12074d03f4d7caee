// The contrast of every text of the document with what is behind it, as they are computed (WCAG 2.2, success criterion 1.4.3).
() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = probe.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (front, back) => [0, 1, 2].map((part) => front[part] * front[3] + back[part] * (1 - front[3])).concat(1);
  const light = (colour) => {
    const [red, green, blue] = colour.slice(0, 3).map((part) => part / 255).map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    const chain = [];
    for (let part = element; part; part = part.parentElement) chain.unshift(rgba(getComputedStyle(part).backgroundColor));
    return chain.reduce((back, front) => over(front, back), [255, 255, 255, 1]);
  };
  const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim()) || element.matches("input, select, textarea");
  const shown = [...document.querySelectorAll("body *")].filter((element) => hasText(element) && !element.closest("noscript") && element.checkVisibility({ opacityProperty: true, visibilityProperty: true }));
  return shown.map((element) => {
    const style = getComputedStyle(element), paper = behind(element);
    const opacity = (part) => (part ? Number(getComputedStyle(part).opacity) * opacity(part.parentElement) : 1);
    const ink = rgba(element instanceof SVGElement ? style.fill : style.color);
    const [low, high] = [light(over([...ink.slice(0, 3), ink[3] * opacity(element)], paper)), light(paper)].sort((one, other) => one - other);
    return { text: `${element.tagName} ${element.getAttribute("class") ?? ""} ${(element.textContent || element.value || "").trim().slice(0, 40)}`, contrast: (high + 0.05) / (low + 0.05) };
  });
}
